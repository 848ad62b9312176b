-- Looks at the head of the backup set: how late it is, and whether claims lapsed.
--
-- KEYS  due
-- ARGV  shadow prefix, how many to look at
-- Gives {the first member or "", how long its time is over (ms), how many of those whose
--        time has come hold a claim, the instance of one of these or ""}
--
-- A claim moves the score to the end of its lease, so a token under a score that
-- has passed is of a claimer that said nothing. Shadows are named from members:
-- they share the slot of the set. Reads only.

local head = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if not head[1] then
  return {'', 0, 0, ''}
end
local lapsed, holder = 0, ''
for _, m in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', int(now), 'LIMIT', 0, ARGV[2])) do
  local token = redis.pcall('HGET', ARGV[1] .. m, 'k')
  if type(token) == 'string' then
    lapsed = lapsed + 1
    holder = string.match(token, '^(.-)%.') or token
  end
end
return {head[1], now - tonumber(head[2]), lapsed, holder}
