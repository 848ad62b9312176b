-- Asks whether the Redis user may run what the scripts run, so that none of them
-- stops half-way for want of a right.
--
-- KEYS  three that do not exist
-- Gives the first refusal, or "". Leaves nothing behind; safe to run twice.

local refused = ''
local function try(...)
  local answer = redis.pcall(...)
  if refused == '' and type(answer) == 'table' and answer.err then
    refused = string.upper((...)) .. ': ' .. answer.err
  end
end

try('UNLINK', KEYS[1]) -- first; see the prelude on maxmemory
if refused ~= '' then
  return refused -- what follows could not be removed
end
try('SET', KEYS[1], '', 'PX', 1000)
try('GET', KEYS[1])
try('EXISTS', KEYS[1])
try('PTTL', KEYS[1])
try('SCAN', 0, 'MATCH', KEYS[1], 'COUNT', 1)
try('HSET', KEYS[2], 'k', '1')
try('HGET', KEYS[2], 'k')
try('HMGET', KEYS[2], 'k')
try('ZADD', KEYS[3], 1, 'm')
try('ZSCORE', KEYS[3], 'm')
try('ZMSCORE', KEYS[3], 'm')
try('ZCARD', KEYS[3])
try('ZSCAN', KEYS[3], 0)
try('ZCOUNT', KEYS[3], 0, 1)
try('ZRANGE', KEYS[3], 0, 0)
try('ZRANGEBYSCORE', KEYS[3], 0, 1)
try('HDEL', KEYS[2], 'k')
try('ZREM', KEYS[3], 'm')
try('UNLINK', KEYS[1], KEYS[2], KEYS[3])
return refused
