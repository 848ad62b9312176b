-- Brings dead timers back: the same life, due now, its attempts counted anew.
--
-- KEYS  due, tried, dead, then per timer: trigger, shadow
-- ARGV  per timer: member
-- Gives now (us), then per timer {outcome, rev, due (ms), 1 when it may have been delivered}:
--       outcome 0 not found, 1 brought back, 2 not dead.
--
-- The due time stays what it was, and with it the Nats-Msg-Id: a copy of an
-- attempt that was stored after all is not stored twice. It stands in the tried
-- set from now on, whose score is the due time, so that a listing keeps its order;
-- a is "0" and not gone, so that a claim looks at what earlier ones left.
-- The trigger gets a millisecond to come: Valkey 8 deletes at once, without an event, what
-- is set with a time that has passed.
-- It begins with UNLINK, since what waits here should drain at maxmemory too.
-- Not safe to run twice: it would bring back what was given up on in between.

local out, unlink, due, tried, back, gone = {now_us}, {}, {}, {}, {}, {}
local at = int(now)
local met = {} -- a name may come twice: two requests of one batch
for i = 1, (#KEYS - 3) / 2 do
  local member = ARGV[i]
  local trigger, shadow = KEYS[2 * i + 2], KEYS[2 * i + 3]
  local v = redis.pcall('HMGET', shadow, 'r', 'd', 'f', 'k', 'u')
  local rev, d = number(v[1]), moment(v[2])
  if v.err or not rev or not d then
    out[i + 1] = {0, 0, 0, 0}
    gone[#gone + 1] = member -- a name without a timer, by a foreign hand
  elseif not v[3] or met[member] then
    out[i + 1] = {2, rev, d, (v[4] or v[5]) and 1 or 0}
    gone[#gone + 1] = member -- of a dead life whose shadow a foreign hand removed
  else
    met[member] = true
    unlink[#unlink + 1] = trigger
    due[#due + 1] = at
    due[#due + 1] = member
    tried[#tried + 1] = v[2]
    tried[#tried + 1] = member
    gone[#gone + 1] = member
    back[#back + 1] = {trigger, shadow}
    out[i + 1] = {1, rev, d, v[5] and 1 or 0}
  end
end
if #unlink == 0 then
  if #gone > 0 then
    pcall(each, 'ZREM', KEYS[3], gone)
  end
  return out
end
each('UNLINK', nil, unlink)
each('ZADD', KEYS[1], due)
-- A foreign type in the place of these must not stop it half-way.
pcall(each, 'ZREM', KEYS[3], gone)
pcall(each, 'ZADD', KEYS[2], tried)
for _, b in ipairs(back) do
  redis.call('HDEL', b[2], 'f', 'c')
  redis.call('HSET', b[2], 'a', '0')
  redis.call('SET', b[1], '', 'PXAT', int(now + 1))
end
return out
