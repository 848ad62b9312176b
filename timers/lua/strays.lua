-- Looks at a stretch of the keyspace, and at as many of the backup set, for
-- records that do not fit together. Changes none; patrol.lua mends.
--
-- KEYS  due, dead
-- ARGV  what the keys of the partition begin with, cursor, how many keys to look at, most to name
-- Gives {next cursor, "0" at the end; records looked at; how many shadows without a
--        member, triggers of no timer, triggers of a timer that have no TTL, members
--        without a shadow; the keys of the first three; the scores of the third; the
--        members of the last}
--
-- What it says of a key is what patrol.lua would do with it: see there. The members
-- are looked at with the first stretch only: those that come next, and as many from
-- anywhere. To look at a trigger whose time has come expires it, which sends its event.
-- Safe to run at any time: what a script of ours has written fits together.

local base, most = ARGV[1], tonumber(ARGV[4])
local page = redis.call('SCAN', ARGV[2], 'MATCH', (string.gsub(base, '[%*%?%[%]\\]', '\\%0')) .. '[ht]:*', 'COUNT', ARGV[3])
local keys, looked = page[2], 0
local count = {0, 0, 0, 0}
local named, scores = {{}, {}, {}, {}}, {}

local function note(kind, name)
  count[kind] = count[kind] + 1
  if #named[kind] < most then
    named[kind][#named[kind] + 1] = name
    return true
  end
end

-- What a script of ours writes; of a foreign hand there may be "nan" or " 5", which Lua
-- takes for a number and ZADD does not, so that nothing behind it would ever be looked at.
local function number(v)
  return v and #v <= 16 and string.match(v, '^%d+$')
end

for first = 1, #keys, 1000 do
  local members = {}
  for i = first, math.min(first + 999, #keys) do
    members[#members + 1] = string.sub(keys[i], #base + 3)
  end
  local known = redis.call('ZMSCORE', KEYS[1], unpack(members))
  for i = 1, #members do
    local key = keys[first + i - 1]
    looked = looked + 1
    if string.sub(key, #base + 1, #base + 1) == 'h' then
      if not known[i] then
        local v = redis.pcall('HMGET', key, 'd', 'r', 'p', 'f')
        local whole = not v.err and number(v[1]) and number(v[2]) and v[3]
        if whole and v[4] then
          if not redis.pcall('ZSCORE', KEYS[2], members[i]) then
            note(1, key)
          end
        elseif whole or redis.call('PTTL', key) == -1 then
          note(1, key)
        end
      end
    elseif redis.call('PTTL', key) == -1 then
      if not known[i] then
        note(2, key)
      elseif note(3, key) then
        scores[#scores + 1] = known[i]
      end
    end
  end
end

if ARGV[2] == '0' then
  local seen = {}
  local function member(m)
    if not seen[m] then
      seen[m] = true
      looked = looked + 1
      if redis.call('EXISTS', base .. 'h:' .. m) == 0 then
        note(4, m)
      end
    end
  end
  for _, m in ipairs(redis.call('ZRANGE', KEYS[1], 0, 199)) do
    member(m)
  end
  local some = redis.call('ZSCAN', KEYS[1], 0, 'COUNT', 200)[2]
  for i = 1, math.min(#some, 800), 2 do
    member(some[i])
  end
end

return {page[1], looked, count[1], count[2], count[3], count[4], named[1], named[2], named[3], scores, named[4]}
