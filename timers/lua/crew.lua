-- Says that an instance lives, and looks which others do.
--
-- KEYS  members, own liveness key
-- ARGV  instance, life (ms), "1" when it fires timers or "0", prefix of liveness keys
-- Gives {1 when the last sign was still there, then per other member: instance,
--        life left (ms) or -1 when it is over, what it says of itself}
--
-- To look at a liveness key whose time has come expires it, so the event of a
-- death leaves at the latest here. Liveness keys are named from members, not
-- passed in: they share the slot of the set.
-- Safe to run twice.

local held = redis.call('EXISTS', KEYS[2])
redis.call('UNLINK', KEYS[2] .. ':none') -- never exists; see the prelude on maxmemory
redis.call('ZADD', KEYS[1], int(now), ARGV[1])
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[2])

local out = {held}
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, 999)) do
  if member ~= ARGV[1] then
    local left = redis.call('PTTL', ARGV[4] .. member)
    local says = redis.pcall('GET', ARGV[4] .. member)
    local n = #out
    out[n + 1], out[n + 2], out[n + 3] = member, left < 0 and -1 or left, type(says) == 'string' and says or ''
  end
end
return out
