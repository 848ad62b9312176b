-- Gives up on claimed timers: each is dead, kept with its payload and the reason
-- where no hint, no look and no claim reaches it.
--
-- KEYS  due, tried, dead, then per timer: trigger, shadow
-- ARGV  per timer: member, rev, token, claimed at (ms), outcome of the last attempt, reason
--       outcome "refused": it was definitely not delivered; "unknown": it may have been
-- Gives per timer: 0 not held any more, 1 dead, 2 removed since a cancel had stopped it.
--
-- The doubt of an earlier attempt stays: u is for the rest of the life. Also c
-- stays, which says when the last attempt began and whose burial it is.
-- Safe to run twice: the token is gone after the first time, and what this very
-- claim has buried is answered 1 again, so that a lost reply loses no announcement.
-- A foreign type in the place of the dead stops it before a timer has left the
-- backup set, so that the end of the lease brings it back; one in the place of
-- the tried stops nothing.

local out, unlink, members, removed, dead, buried = {}, {}, {}, {}, {}, {}
for i = 1, (#KEYS - 3) / 2 do
  local a = 6 * i - 5
  local member = ARGV[a]
  local trigger, shadow = KEYS[2 * i + 2], KEYS[2 * i + 3]
  local v = redis.pcall('HMGET', shadow, 'r', 'k', 'x', 'd', 'f', 'c')
  out[i] = 0
  if not v.err and v[1] == ARGV[a + 1] then
    if v[2] == ARGV[a + 2] then
      unlink[#unlink + 1] = trigger
      members[#members + 1] = member
      if v[3] or not whole(v[4]) then
        unlink[#unlink + 1] = shadow
        removed[#removed + 1] = member
        out[i] = 2
      else
        dead[#dead + 1] = v[4]
        dead[#dead + 1] = member
        buried[#buried + 1] = {shadow, ARGV[a + 4] == 'unknown', ARGV[a + 5]}
        out[i] = 1
      end
    elseif not v[2] and v[5] and v[6] == ARGV[a + 3] then
      out[i] = 1
    end
  end
end
if #unlink > 0 then
  each('UNLINK', nil, unlink)
end
if #dead > 0 then
  each('ZADD', KEYS[3], dead)
end
for _, b in ipairs(buried) do
  redis.call('HDEL', b[1], 'k')
  if b[2] then
    redis.call('HSET', b[1], 'f', b[3], 'u', '1')
  else
    redis.call('HSET', b[1], 'f', b[3])
  end
end
if #members > 0 then
  each('ZREM', KEYS[1], members)
  pcall(each, 'ZREM', KEYS[2], members)
end
if #removed > 0 then
  pcall(each, 'ZREM', KEYS[3], removed)
end
return out
