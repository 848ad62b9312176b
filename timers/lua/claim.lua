-- Claims timers that need attention: the one decision on what is fired.
--
-- KEYS  due, tried, then per timer: trigger, shadow
-- ARGV  lease (ms), token, most bytes to hand out, "again" for a repetition or "",
--       then per timer: member
-- Gives {now (us), records repaired, then per timer one of
--       0  nothing to do: not due, claimed by another, gone, or repaired
--       1  due, but the bytes are used up: ask again
--       {rev, due (ms), attempt, unsure, claimed at (ms), payload, headers}}
-- unsure is 1 when an earlier attempt may have been delivered, and 2 when an
-- earlier claim was not even settled.
--
-- The backup score and Redis's clock decide; who asks and why does not matter.
-- A claim moves the score to now + lease. A timer whose score came round again
-- while it holds a token is one whose claimer said nothing: unsure for good.
-- Safe to run twice with the same token: what it claimed is answered again, at a
-- repetition. Else a score in the future is answered without a look at the rest,
-- since most hints of several instances come second.
-- Records that do not fit together are mended or removed here, one by one, so
-- that none of them holds up the others.

local lease, token, budget = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local until_s, now_s = int(now + lease), int(now)
local out = {now_us, 0}
local again = ARGV[4] ~= ''
local n = #ARGV - 4
if n == 0 then
  return out
end
local scores = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, 5))
local unlink, zrem, due, tried, claimed = {}, {}, {}, {}, {}
local untried = {}

local function drop(i)
  unlink[#unlink + 1] = KEYS[2 * i + 1]
  unlink[#unlink + 1] = KEYS[2 * i + 2]
  zrem[#zrem + 1] = ARGV[i + 4]
end

-- Decides on one timer whose score has come, or is missing.
local function decide(i, member, score, shadow)
  local v = redis.pcall('HMGET', shadow, 'r', 'd', 'p', 'h', 'a')
  local rev, d, payload, headers = number(v[1]), moment(v[2]), v[3], v[4] or ''
  -- What only a claim or a burial writes is there after the first one: k, u, x, c, f.
  local before = v[5] and redis.call('HMGET', shadow, 'k', 'u', 'x', 'c', 'f') or untried
  local attempt = number(v[5]) or 0
  if v.err or (v[1] or v[2] or payload) and not (rev and d and payload) then
    drop(i)
    out[2] = out[2] + 1
  elseif not rev then
    if score then
      drop(i)
      out[2] = out[2] + 1
    end
  elseif before[5] then
    -- Dead: not to be claimed until a retry. The backup set has it only where a
    -- foreign hand put it there.
    if score then
      zrem[#zrem + 1] = member
      out[2] = out[2] + 1
    end
  elseif before[1] == token and score then
    out[i + 2] = {rev, d, attempt, before[2] and 1 or 0, moment(before[4]) or now, payload, headers}
  else
    if not score or (score <= now and d > now) then
      -- The backup lost it, or was pulled ahead of the due time.
      score = d
      due[#due + 1] = v[2]
      due[#due + 1] = member
      out[2] = out[2] + 1
    end
    if score > now then
      out[i + 2] = 0
    elseif before[3] then
      drop(i)
    elseif budget <= 0 then
      out[i + 2] = 1
    else
      budget = budget - #payload - #headers
      local unsure = before[1] or before[2]
      attempt = attempt + 1
      unlink[#unlink + 1] = KEYS[2 * i + 1]
      due[#due + 1] = until_s
      due[#due + 1] = member
      tried[#tried + 1] = v[2]
      tried[#tried + 1] = member
      claimed[#claimed + 1] = {shadow, attempt, unsure, member, score}
      out[i + 2] = {rev, d, attempt, before[1] and 2 or before[2] and 1 or 0, now, payload, headers}
    end
  end
end

local met = {} -- a name may come twice: two events of one batch
for i = 1, n do
  local member, score = ARGV[i + 4], tonumber(scores[i] or '')
  out[i + 2] = 0
  if not met[member] and (again or not score or score <= now) then
    met[member] = true
    decide(i, member, score, KEYS[2 * i + 2])
  end
end

if #unlink == 0 then
  if #due == 0 and #zrem == 0 then
    return out
  end
  unlink[1] = KEYS[2] .. ':none' -- never exists; see the prelude on maxmemory
end
remove(KEYS[1], KEYS[2], unlink, zrem)
each('ZADD', KEYS[1], due)
pcall(each, 'ZADD', KEYS[2], tried) -- a foreign type there must not keep timers from firing
for i, c in ipairs(claimed) do
  local answer
  if c[3] then
    answer = redis.pcall('HSET', c[1], 'a', c[2], 'k', token, 'c', now_s, 'u', '1')
  else
    answer = redis.pcall('HSET', c[1], 'a', c[2], 'k', token, 'c', now_s)
  end
  if type(answer) == 'table' then
    -- The right was taken away. Without a token nobody holds these: left where the
    -- lease ends, they would look as if nothing were due, and be that late.
    for j = i, #claimed do
      redis.call('ZADD', KEYS[1], int(claimed[j][5]), claimed[j][4])
    end
    return answer
  end
end
return out
