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
-- What is amiss with a key says walk.lua. The members
-- are looked at with the first stretch only: those that come next, and as many from
-- anywhere. To look at a trigger whose time has come expires it, which sends its event.
-- Safe to run at any time: what a script of ours has written fits together.

local base, most, looked = ARGV[1], tonumber(ARGV[4]), 0
local count = {0, 0, 0, 0}
local named, scores = {{}, {}, {}, {}}, {}

local function note(kind, name)
  count[kind] = count[kind] + 1
  if #named[kind] < most then
    named[kind][#named[kind] + 1] = name
    return true
  end
end

local cursor = walk(base, ARGV[2], ARGV[3], KEYS[1], KEYS[2], function(key, _, score, amiss)
  looked = looked + 1
  if amiss == 'stray' then
    note(2, key)
  elseif amiss then
    note(1, key)
  elseif score and string.sub(key, #base + 1, #base + 1) == 't' and redis.call('PTTL', key) == -1 and note(3, key) then
    scores[#scores + 1] = score
  end
end)

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

return {cursor, looked, count[1], count[2], count[3], count[4], named[1], named[2], named[3], scores, named[4]}
