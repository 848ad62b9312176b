-- Gives claims back after attempts that were not confirmed, to be tried again
-- after a back-off.
--
-- KEYS  due, tried, then per timer: trigger, shadow
-- ARGV  per timer: member, rev, token, outcome, back-off (ms)
--       outcome "refused": it was definitely not delivered; "unknown": it may have been
-- Gives per timer: 0 not held any more, 1 released, 2 removed since a cancel had stopped it.
--
-- Refused, and nothing unknown before it: scheduled again, so that a cancel can
-- still be OK. Otherwise it stays firing, unsure for the rest of this life.
-- Safe to run twice: the token is gone after the first time.

local out, release, unlink, stopped, scores = {}, {}, {}, {}, {}
for i = 1, (#KEYS - 2) / 2 do
  local a = 5 * i - 4
  local trigger, shadow = KEYS[2 * i + 1], KEYS[2 * i + 2]
  local v = redis.pcall('HMGET', shadow, 'r', 'k', 'x')
  out[i] = 0
  if not v.err and v[1] == ARGV[a + 1] and v[2] == ARGV[a + 2] then
    unlink[#unlink + 1] = trigger
    if v[3] then
      unlink[#unlink + 1] = shadow
      stopped[#stopped + 1] = ARGV[a]
      out[i] = 2
    else
      local at = int(now + tonumber(ARGV[a + 4]))
      scores[#scores + 1] = at
      scores[#scores + 1] = ARGV[a]
      release[#release + 1] = {trigger, shadow, at, ARGV[a + 3] == 'unknown'}
      out[i] = 1
    end
  end
end
remove(KEYS[1], KEYS[2], unlink, stopped)
each('ZADD', KEYS[1], scores)
for _, r in ipairs(release) do
  redis.call('HDEL', r[2], 'k', 'c')
  if r[4] then
    redis.call('HSET', r[2], 'u', '1')
  end
  redis.call('SET', r[1], '', 'PXAT', r[3])
end
return out
