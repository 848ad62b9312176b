-- Counts a partition's pending timers by topic, from a random sample where there are many.
--
-- KEYS  due
-- ARGV  most timers to look at
-- Gives {pending, timers looked at, then per topic: topic, how many of them}. Equal to
-- pending, the second says that all were looked at. Reads only.

local most = tonumber(ARGV[1])
local pending = redis.call('ZCARD', KEYS[1])
local members
if pending <= most then
  members = redis.call('ZRANGE', KEYS[1], 0, -1)
else
  members = redis.call('ZRANDMEMBER', KEYS[1], most) -- distinct ones
end
local counts = {}
for _, member in ipairs(members) do
  local colon = string.find(member, ':', 1, true)
  if colon then
    local topic = string.sub(member, 1, colon - 1)
    counts[topic] = (counts[topic] or 0) + 1
  end
end
local out = {pending, #members}
for topic, n in pairs(counts) do
  out[#out + 1], out[#out + 2] = topic, n
end
return out
