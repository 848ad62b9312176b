-- Removes timers whose delivery was confirmed, with all their records.
--
-- KEYS  due, tried, then per timer: shadow
-- ARGV  per timer: member, rev, token
-- Gives how many were removed.
--
-- Another rev or token changes nothing: the timer was set again, or claimed by
-- another after the lease. Safe to run twice.

local shadows, members = {}, {}
for i = 1, #KEYS - 2 do
  local v = redis.pcall('HMGET', KEYS[i + 2], 'r', 'k')
  if not v.err and v[1] == ARGV[3 * i - 1] and v[2] == ARGV[3 * i] then
    shadows[#shadows + 1] = KEYS[i + 2]
    members[#members + 1] = ARGV[3 * i - 2]
  end
end
if #shadows > 0 then
  each('UNLINK', nil, shadows)
  each('ZREM', KEYS[1], members)
  each('ZREM', KEYS[2], members)
end
return #shadows
