-- Gives back the claims of an instance that died: their score becomes the due
-- time again, so that the next look finds them.
--
-- KEYS  due, then per timer: shadow
-- ARGV  instance, then per timer: member
-- Gives how many were given back.
--
-- The token stays, so the next claim finds the life unsure: it may have been
-- delivered. Should the instance live after all, its ack is still good until
-- another has claimed. Safe to run twice.

local mine, scores = ARGV[1] .. '.', {}
for i = 2, #ARGV do
  local v = redis.pcall('HMGET', KEYS[i], 'k', 'd')
  if not v.err and v[1] and string.sub(v[1], 1, #mine) == mine and whole(v[2]) then
    scores[#scores + 1] = v[2]
    scores[#scores + 1] = ARGV[i]
  end
end
if #scores > 0 then
  redis.call('UNLINK', KEYS[1] .. ':none') -- never exists; see the prelude on maxmemory
  for i = 1, #scores, 1000 do
    redis.call('ZADD', KEYS[1], 'XX', unpack(scores, i, math.min(i + 999, #scores)))
  end
end
return #scores / 2
