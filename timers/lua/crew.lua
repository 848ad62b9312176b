-- Says that an instance lives, and looks which others do.
--
-- KEYS  members, own liveness key
-- ARGV  instance, life (ms), what it says of itself, prefix of liveness keys
-- Gives {1 when the last sign was still there, then per other member: instance,
--        life left (ms) or -1 when it is over, what it says of itself}
--
-- To look at a liveness key whose time has come expires it, so the event of a
-- death leaves at the latest here. Liveness keys are named from members, not
-- passed in: they share the slot of the set. It runs once a second while nothing
-- else happens, so it needs neither the time nor a write that is not due.
-- Safe to run twice.

local function sign()
  return redis.pcall('SET', KEYS[2], ARGV[3], 'PX', ARGV[2], 'GET')
end

local before = sign()
if type(before) == 'table' and before.err then
  -- Over maxmemory, which must not make the dead of the living: a first write
  -- that frees lets the others through. The key never exists.
  redis.call('UNLINK', KEYS[2] .. ':none')
  before = sign()
  if type(before) == 'table' and before.err then
    return before
  end
end

local out, member = {before and 1 or 0}, false
for _, other in ipairs(redis.call('ZRANGE', KEYS[1], 0, 999)) do
  if other == ARGV[1] then
    member = true
  else
    local left = redis.call('PTTL', ARGV[4] .. other)
    local says = redis.pcall('GET', ARGV[4] .. other)
    local n = #out
    out[n + 1], out[n + 2], out[n + 3] = other, left < 0 and -1 or left, type(says) == 'string' and says or ''
  end
end
if not member then
  redis.call('ZADD', KEYS[1], 0, ARGV[1])
end
return out
