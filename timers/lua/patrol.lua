-- Looks at a stretch of the keyspace for records that the backup set does not
-- know of, which nothing else would ever meet.
--
-- KEYS  due, dead
-- ARGV  what the keys of the partition begin with, cursor, how many keys to look at
-- Gives {next cursor, "0" at the end; records mended or removed}
--
-- A shadow that is whole goes back into the backup set, with its due time as
-- its score, and one that is dead into the set of those; what is not whole is
-- removed, and so is a trigger of no timer. What has a TTL, as no shadow of ours
-- has, ends by itself. Records are named from what the scan finds: they share the slot of the
-- set. Safe to run at any time: what a script of ours has written fits together.

local base = ARGV[1]
local page = redis.call('SCAN', ARGV[2], 'MATCH', (string.gsub(base, '[%*%?%[%]\\]', '\\%0')) .. '[ht]:*', 'COUNT', ARGV[3])
local keys, gone, scores, dead = page[2], {}, {}, {}
-- COUNT is about how many there are at a time; a table in the middle of its growth
-- may give more.
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
    if not known[i] and string.sub(key, #base + 1, #base + 1) == 'h' then
      local v = redis.pcall('HMGET', key, 'd', 'r', 'p', 'f')
      if not v.err and number(v[1]) and number(v[2]) and v[3] then
        if not v[4] then
          scores[#scores + 1] = v[1]
          scores[#scores + 1] = members[i]
        elseif not redis.pcall('ZSCORE', KEYS[2], members[i]) then -- nor where that is of a foreign type
          dead[#dead + 1] = v[1]
          dead[#dead + 1] = members[i]
        end
      elseif redis.call('PTTL', key) == -1 then
        gone[#gone + 1] = key
      end
    elseif not known[i] and redis.call('PTTL', key) == -1 then
      gone[#gone + 1] = key
    end
  end
end

-- The first write may not grow, so that it goes through over maxmemory; the key
-- never exists.
if #gone + #scores + #dead > 0 then
  redis.call('UNLINK', KEYS[1] .. ':none', unpack(gone, 1, math.min(#gone, 1000)))
end
for i = 1, #scores, 1000 do
  redis.call('ZADD', KEYS[1], unpack(scores, i, math.min(i + 999, #scores)))
end
for i = 1, #dead, 1000 do
  redis.call('ZADD', KEYS[2], unpack(dead, i, math.min(i + 999, #dead)))
end
return {page[1], (#scores + #dead) / 2 + math.min(#gone, 1000)}
