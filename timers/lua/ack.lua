-- Removes timers whose delivery was confirmed, with all their records.
--
-- KEYS  due, tried, then per timer: shadow
-- ARGV  per timer: member, token
-- Gives how many were removed.
--
-- Another token changes nothing: the timer was claimed by another after the
-- lease, or set again, which drops the token; so it stands for the rev as well.
-- Safe to run twice.

local shadows, members = {}, {}
for i = 1, #KEYS - 2 do
  if redis.pcall('HGET', KEYS[i + 2], 'k') == ARGV[2 * i] then
    shadows[#shadows + 1] = KEYS[i + 2]
    members[#members + 1] = ARGV[2 * i - 1]
  end
end
remove(KEYS[1], KEYS[2], shadows, members)
return #shadows
