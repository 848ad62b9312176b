-- Looks at what is due, and touches the trigger keys of what became due within
-- the grace, so that Redis expires them now and their events leave.
--
-- KEYS  due
-- ARGV  trigger prefix, grace (ms), most to touch, most of the overdue to name
-- Gives {now (us), next score in the future (ms) or -1, triggers still there,
--        touched, oldest score touched (ms) or -1, then the members overdue by
--        more than the grace, oldest first}
--
-- Redis expires a key only when now is strictly past its time, and only when
-- somebody looks at it (https://redis.io/docs/latest/commands/expire/): a
-- trigger still there wants another touch a millisecond later.
-- Triggers are named from members, not passed in: they share the slot of the
-- set. It changes none of our records, so it is safe to run at any time.

-- Mostly nothing is due, and the head says so.
local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if not head[1] then
  return {now_us, -1, 0, 0, -1}
elseif tonumber(head[2]) > now then
  return {now_us, tonumber(head[2]), 0, 0, -1}
end

local edge = int(now - tonumber(ARGV[2]))
local overdue = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', edge, 'LIMIT', 0, ARGV[4])
local fresh = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. edge, int(now), 'WITHSCORES', 'LIMIT', 0, ARGV[3])
local following = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)

local oldest, there = tonumber(fresh[2] or '-1'), 0
for i = 1, #fresh, 2000 do
  local keys = {}
  for j = i, math.min(i + 1998, #fresh), 2 do
    keys[#keys + 1] = ARGV[1] .. fresh[j]
  end
  there = there + redis.call('EXISTS', unpack(keys))
end
local out = {now_us, tonumber(following[2] or '-1'), there, #fresh / 2, oldest}
for i = 1, #overdue do
  out[5 + i] = overdue[i]
end
return out
