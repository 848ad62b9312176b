-- Stores timers, each replacing the life of the same name in one step.
--
-- KEYS  due, tried, rev, then per timer: trigger, shadow
-- ARGV  longest delay (ms), then per timer: member, kind, n, payload, headers, schedule
--       kind "in": n is a delay in microseconds; "at": n is a time in ms
-- Gives {now (us), then per timer {rev, due (ms), state of the life it replaced or ""}};
--       {0} for one beyond the longest delay, of which nothing was stored.
--
-- Due is the later of the asked time and now, rounded up to the millisecond.
-- Any error Redis answers means that nothing was stored: the first write may
-- grow, so it is refused over maxmemory, on a replica, or while Redis cannot
-- persist; and what could fail on a foreign type comes before the shadows.
-- Not safe to run twice: it would raise what was cancelled in between.

local longest = tonumber(ARGV[1])
local last = tonumber(redis.call('GET', KEYS[3]) or '0') or 0
local out, scores, retried, todo = {now_us}, {}, {}, {}
local seen = {}

for i = 1, (#KEYS - 3) / 2 do
  local trigger, shadow = KEYS[2 * i + 2], KEYS[2 * i + 3]
  local a = 6 * i - 4
  local member, n = ARGV[a], tonumber(ARGV[a + 2])
  local due
  if ARGV[a + 1] == 'in' then
    due = math.ceil((now_us + n) / 1000)
  else
    due = math.max(n, math.ceil(now_us / 1000))
  end

  if due - now > longest + 1 then -- rounding up may add one
    out[i + 1] = {0}
  else
    local was, stale = '', false
    if seen[member] then
      was, stale = 'scheduled', true
    else
      local old = redis.pcall('HMGET', shadow, 'r', 'k', 'u', 'a')
      if old.err then
        stale = true
      elseif old[1] then
        stale = true
        was = (old[2] or old[3]) and 'firing' or 'scheduled'
        if old[4] ~= '0' then
          retried[#retried + 1] = member
        end
      end
    end
    seen[member] = true
    last = math.max(last + 1, now_us)
    scores[#scores + 1] = int(due)
    scores[#scores + 1] = member
    todo[#todo + 1] = {trigger, shadow, stale, int(due), int(last), a}
    out[i + 1] = {last, due, was}
  end
end

if #todo == 0 then
  return out
end
redis.call('SET', KEYS[3], int(last))
each('ZADD', KEYS[1], scores)
if #retried > 0 then
  each('ZREM', KEYS[2], retried)
end
for _, t in ipairs(todo) do
  local a = t[6]
  if t[3] then
    redis.call('UNLINK', t[2])
  end
  redis.call('HSET', t[2], 'p', ARGV[a + 3], 'h', ARGV[a + 4], 'd', t[4], 'r', t[5], 's', ARGV[a + 5], 'a', '0')
  redis.call('SET', t[1], '', 'PXAT', t[4])
end
return out
