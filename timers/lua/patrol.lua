-- Looks at a stretch of the keyspace for records that the backup set does not
-- know of, which nothing else would ever meet.
--
-- KEYS  due, dead
-- ARGV  what the keys of the partition begin with, cursor, how many keys to look at
-- Gives {next cursor, "0" at the end; records mended or removed}
--
-- A shadow that is whole goes back into the backup set, with its due time as
-- its score, and one that is dead into the set of those; what is not whole is
-- removed, and so is a trigger of no timer. Records are named from what the scan
-- finds: they share the slot of the set. Safe to run at any time: what a script of
-- ours has written fits together.

local gone, scores, dead = {}, {}, {}
local cursor = walk(ARGV[1], ARGV[2], ARGV[3], KEYS[1], KEYS[2], function(key, member, _, amiss, at)
  if amiss == 'unknown' then
    scores[#scores + 1] = at
    scores[#scores + 1] = member
  elseif amiss == 'unlisted' then
    dead[#dead + 1] = at
    dead[#dead + 1] = member
  elseif amiss then
    gone[#gone + 1] = key
  end
end)

-- The first write may not grow, so that it goes through over maxmemory; the key
-- never exists.
if #gone + #scores + #dead > 0 then
  redis.call('UNLINK', KEYS[1] .. ':none', unpack(gone, 1, math.min(#gone, 1000)))
end
each('ZADD', KEYS[1], scores)
each('ZADD', KEYS[2], dead)
return {cursor, (#scores + #dead) / 2 + math.min(#gone, 1000)}
