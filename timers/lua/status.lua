-- Counts what waits in a partition.
--
-- KEYS  due, dead
-- Gives {now (us), pending, overdue, next score in the future (ms) or -1, dead,
--        oldest score that is overdue (ms) or -1}. Reads only.

local following = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local head = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', int(now), 'WITHSCORES', 'LIMIT', 0, 1)
return {now_us, redis.call('ZCARD', KEYS[1]), redis.call('ZCOUNT', KEYS[1], '-inf', int(now)),
  tonumber(following[2] or '-1'), redis.call('ZCARD', KEYS[2]), tonumber(head[2] or '-1')}
