-- Stores timers, each replacing the life of the same name in one step.
--
-- KEYS  due, tried, rev, then per timer: trigger, shadow; last: dead
-- ARGV  longest delay (ms), then per timer: member, kind, n, payload, headers, schedule
--       kind "in": n is a delay in microseconds; "at": n is a time in ms; "due": the
--       same, where the schedule says what is written from the due time when absent
-- Gives now (us), then per timer: rev, due (ms), state of the life it replaced or "";
--       a rev of 0 for one beyond the longest delay, of which nothing was stored.
--
-- Due is the later of the asked time and now, rounded up to the millisecond.
-- The errors that Redis answers by itself mean that nothing was stored: the first
-- write may grow, so it is refused over maxmemory, on a replica, or while Redis
-- cannot persist; and a foreign type in the place of the backup set or the counter
-- is met by a read before it, while one in the place of another set stops nothing.
-- A right that is missing would stop it half-way. The probe at the start sees to it; should
-- that to HSET be taken away later, no old life is removed that no new one could follow.
-- Not safe to run twice: it would raise what was cancelled in between.

local longest = tonumber(ARGV[1])
local last = number(redis.call('GET', KEYS[3])) or 0
if last >= 2 ^ 53 then
  last = 0 -- by a foreign hand: one more is not a larger number there
end
local n = (#KEYS - 4) / 2
local out, members, scores, replaced, retried = {now_us}, {}, {}, {}, {}
local kept -- a shadow that is replaced, and the rev in it
local first, writer, dues, revs = {}, {}, {}, {} -- of a name that comes twice only the last is written

for i = 1, n do
  members[i] = ARGV[6 * i - 4]
end
-- One call tells the new names, which most are, from those to look at.
local held = redis.call('ZMSCORE', KEYS[1], unpack(members))

for i = 1, n do
  local a, member = 6 * i - 4, members[i]
  local asked, due = tonumber(ARGV[a + 2]), nil
  if ARGV[a + 1] == 'in' then
    due = math.ceil((now_us + asked) / 1000)
  else
    due = math.max(asked, math.ceil(now_us / 1000))
  end

  local rev, was = 0, ''
  if due - now <= longest + 1 then -- rounding up may add one
    if writer[member] then
      was = 'scheduled'
    elseif held[i] then
      local old = redis.pcall('HMGET', KEYS[2 * i + 3], 'r', 'k', 'u', 'a')
      if not old.err and old[1] then
        was = (old[2] or old[3]) and 'firing' or 'scheduled'
        kept = kept or {KEYS[2 * i + 3], old[1]}
        if old[4] then
          retried[#retried + 1] = member
        end
      end
    end
    last = math.max(last + 1, now_us)
    rev = last
    first[member] = first[member] or i
    writer[member], dues[i], revs[i] = i, int(due), int(rev)
    scores[#scores + 1] = dues[i]
    scores[#scores + 1] = member
    if held[i] then
      replaced[#replaced + 1] = KEYS[2 * i + 3]
    end
  end
  out[3 * i - 1], out[3 * i], out[3 * i + 1] = rev, due, was
end

if #scores == 0 then
  return out
end
redis.call('SET', KEYS[3], int(last))
if kept then
  redis.call('HSET', kept[1], 'r', kept[2]) -- changes nothing, and asks for the right
end
each('ZADD', KEYS[1], scores)
if #retried > 0 then
  pcall(each, 'ZREM', KEYS[2], retried)
end
if #replaced > 0 then
  each('UNLINK', nil, replaced)
end

local function write(member, shadow, ...)
  local answer = redis.pcall('HSET', shadow, ...)
  if type(answer) == 'table' or answer * 2 < select('#', ...) then
    -- Something stood there that the backup set did not know of: a dead timer, or
    -- what a foreign hand left.
    local reason = redis.pcall('HGET', shadow, 'f')
    if type(reason) == 'string' then
      out[3 * first[member] + 1] = 'dead'
    end
    redis.pcall('ZREM', KEYS[#KEYS], member)
    redis.call('UNLINK', shadow)
    redis.pcall('ZREM', KEYS[2], member)
    redis.call('HSET', shadow, ...)
  end
end

for i = 1, n do
  if dues[i] and writer[members[i]] == i then
    local a, shadow = 6 * i - 4, KEYS[2 * i + 3]
    local payload, headers = ARGV[a + 3], ARGV[a + 4]
    if ARGV[a + 1] == 'due' and dues[i] == ARGV[a + 2] then
      if headers == '' then
        write(members[i], shadow, 'p', payload, 'd', dues[i], 'r', revs[i])
      else
        write(members[i], shadow, 'p', payload, 'd', dues[i], 'r', revs[i], 'h', headers)
      end
    elseif headers == '' then
      write(members[i], shadow, 'p', payload, 'd', dues[i], 'r', revs[i], 's', ARGV[a + 5])
    else
      write(members[i], shadow, 'p', payload, 'd', dues[i], 'r', revs[i], 's', ARGV[a + 5], 'h', headers)
    end
    redis.call('SET', KEYS[2 * i + 2], '', 'PXAT', dues[i])
  end
end
return out
