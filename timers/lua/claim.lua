-- Claims timers that need attention: the one decision on what is fired.
--
-- KEYS  due, tried, then per timer: trigger, shadow
-- ARGV  lease (ms), token, most bytes to hand out, then per timer: member
-- Gives {now (us), records repaired, then per timer one of
--       0  nothing to do: not due, claimed by another, gone, or repaired
--       1  due, but the bytes are used up: ask again
--       {rev, due (ms), attempt, unsure 0 or 1, claimed at (ms), payload, headers}}
--
-- The backup score and Redis's clock decide; who asks and why does not matter.
-- A claim moves the score to now + lease. A timer whose score came round again
-- while it holds a token is one whose claimer said nothing: unsure for good.
-- Safe to run twice with the same token: what it claimed is answered again.
-- Records that do not fit together are mended or removed here, one by one, so
-- that none of them holds up the others.

local lease, token, budget = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local out = {now_us, 0}
local n = #ARGV - 3
if n == 0 then
  return out
end
local scores = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, 4))
local unlink, zrem, due, tried, claimed = {}, {}, {}, {}, {}

local function drop(i)
  unlink[#unlink + 1] = KEYS[2 * i + 1]
  unlink[#unlink + 1] = KEYS[2 * i + 2]
  zrem[#zrem + 1] = ARGV[i + 3]
end

for i = 1, n do
  local member, score = ARGV[i + 3], tonumber(scores[i] or '')
  local v = redis.pcall('HMGET', KEYS[2 * i + 2], 'r', 'd', 'a', 'k', 'u', 'x', 'c', 'p', 'h')
  local rev, d = tonumber(v[1] or ''), tonumber(v[2] or '')
  local attempt = tonumber(v[3] or '') or 0
  out[i + 2] = 0
  if v.err or (v[1] or v[2] or v[8]) and not (rev and d and v[8]) then
    drop(i)
    out[2] = out[2] + 1
  elseif not rev then
    if score then
      drop(i)
      out[2] = out[2] + 1
    end
  elseif v[4] == token and score then
    out[i + 2] = {rev, d, attempt, v[5] and 1 or 0, tonumber(v[7] or '') or now, v[8], v[9] or ''}
  else
    if not score or (score <= now and d > now) then
      -- The backup lost it, or was pulled ahead of the due time.
      score = d
      due[#due + 1] = int(d)
      due[#due + 1] = member
      out[2] = out[2] + 1
    end
    if score > now then
      out[i + 2] = 0
    elseif v[6] then
      drop(i)
    elseif budget <= 0 then
      out[i + 2] = 1
    else
      budget = budget - #v[8] - #(v[9] or '')
      local unsure = v[4] or v[5]
      attempt = attempt + 1
      unlink[#unlink + 1] = KEYS[2 * i + 1]
      due[#due + 1] = int(now + lease)
      due[#due + 1] = member
      tried[#tried + 1] = int(d)
      tried[#tried + 1] = member
      claimed[#claimed + 1] = {KEYS[2 * i + 2], attempt, unsure}
      out[i + 2] = {rev, d, attempt, unsure and 1 or 0, now, v[8], v[9] or ''}
    end
  end
end

if #unlink == 0 then
  if #due == 0 then
    return out
  end
  unlink[1] = KEYS[2] .. ':none' -- never exists; see the prelude on maxmemory
end
each('UNLINK', nil, unlink)
if #zrem > 0 then
  each('ZREM', KEYS[1], zrem)
  each('ZREM', KEYS[2], zrem)
end
if #due > 0 then
  each('ZADD', KEYS[1], due)
end
if #tried > 0 then
  each('ZADD', KEYS[2], tried)
end
for _, c in ipairs(claimed) do
  if c[3] then
    redis.call('HSET', c[1], 'a', int(c[2]), 'k', token, 'c', int(now), 'u', '1')
  else
    redis.call('HSET', c[1], 'a', int(c[2]), 'k', token, 'c', int(now))
  end
end
return out
