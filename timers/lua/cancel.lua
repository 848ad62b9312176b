-- Cancels timers: those that were never handed to NATS are gone; of those that
-- may be under way no further attempt is made.
--
-- KEYS  due, tried, then per timer: trigger, shadow; last: dead
-- ARGV  per timer: member
-- Gives {records repaired, then per timer {outcome, rev}}: outcome 0 not found,
--       1 cancelled, 2 too late (firing), 3 too late (dead, and may have been delivered).
--
-- A live claim keeps its records, marked x, so that a set meanwhile can say what
-- it replaced; its claimer's ack or release removes them. Where no claim is
-- alive nobody would, so they go now.
-- A foreign type in the place of the backup set stops it before the first write,
-- one in the place of another set stops nothing.
-- Not safe to run twice: it would cancel a life that was set in between.

local out, gone, members, stop, dead = {0}, {}, {}, {}, {}

for i = 1, (#KEYS - 3) / 2 do
  local trigger, shadow = KEYS[2 * i + 1], KEYS[2 * i + 2]
  local member = ARGV[i]
  local v = redis.pcall('HMGET', shadow, 'r', 'k', 'u', 'f')
  local score = tonumber(redis.call('ZSCORE', KEYS[1], member) or '')
  local remove = true
  if v.err or not whole(v[1]) then
    out[i + 1] = {0, 0}
    dead[#dead + 1] = member -- a name without a timer, by a foreign hand
    remove = v.err or v[1] or score
    if remove then
      out[1] = out[1] + 1
    end
  elseif v[4] then
    out[i + 1] = {v[3] and 3 or 1, tonumber(v[1])}
    dead[#dead + 1] = member
  elseif not v[2] and not v[3] then
    out[i + 1] = {1, tonumber(v[1])}
  else
    out[i + 1] = {2, tonumber(v[1])}
    if v[2] and score and score > now then
      remove = false
      stop[#stop + 1] = shadow
    end
  end
  if remove then
    gone[#gone + 1] = trigger
    gone[#gone + 1] = shadow
    members[#members + 1] = member
  end
end

if #gone > 0 then
  each('UNLINK', nil, gone)
  each('ZREM', KEYS[1], members)
  pcall(each, 'ZREM', KEYS[2], members)
end
if #dead > 0 then
  pcall(each, 'ZREM', KEYS[#KEYS], dead)
end
if #stop > 0 then
  redis.call('UNLINK', KEYS[3]) -- a claimed timer has no trigger; see the prelude on maxmemory
  for _, shadow in ipairs(stop) do
    redis.call('HSET', shadow, 'x', '1')
  end
end
return out
