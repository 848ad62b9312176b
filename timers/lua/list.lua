-- Gives one page of a partition's timers, soonest first by their due time.
--
-- KEYS  due, tried, dead
-- ARGV  shadow prefix, topic or "", due (ms) of the cursor or "", member of the cursor,
--       most timers, most members to look at, "dead", "pending" (all others) or "" for both
-- Gives {end due (ms) or -1, end member, then per timer: due (ms), member, rev, attempts,
--        0 scheduled, 1 firing, or the reason of a dead one}; the end is how far the page reaches,
--        -1 when nothing is beyond.
--
-- The backup score of a claimed timer is not its due time, so those are read from
-- the tried set, whose score is, and skipped in the backup set. Dead ones are in a
-- set of their own, by due time too. The three are merged.
-- The order is by score and then by the bytes of the member, as in a sorted set,
-- whatever the server's locale. Reads only.

local topic, after, anchor = ARGV[2], ARGV[3], ARGV[4]
local most, budget, state = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]

-- Lua's own < on strings follows the locale.
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- The rank of the first member after the cursor.
local function start(set)
  if after == '' then
    return 0
  end
  local low = redis.call('ZCOUNT', set, '-inf', '(' .. after)
  local high = low + redis.call('ZCOUNT', set, after, after)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if before(anchor, redis.call('ZRANGE', set, middle, middle)[1]) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local function read(set, unwanted)
  if state == unwanted then
    return {flat = {}, at = 1}
  end
  local first = start(set)
  local flat = redis.call('ZRANGE', set, first, first + budget - 1, 'WITHSCORES')
  return {flat = flat, at = 1, more = #flat == 2 * budget}
end

local function peek(source)
  local member = source.flat[source.at]
  return member, tonumber(source.flat[source.at + 1] or '')
end

local plain, tried, dead = read(KEYS[1], 'dead'), read(KEYS[2], 'dead'), read(KEYS[3], 'pending')
local sources = {plain, tried, dead}
local displaced = {}
for i = 1, #plain.flat, 2000 do
  local members = {}
  for j = i, math.min(i + 1998, #plain.flat), 2 do
    members[#members + 1] = plain.flat[j]
  end
  local scores = redis.call('ZMSCORE', KEYS[2], unpack(members))
  for j = 1, #members do
    if scores[j] then
      displaced[members[j]] = true
    end
  end
end

local function wanted(member)
  if topic == '' then
    return true
  end
  local t = string.sub(member, 1, (string.find(member, ':', 1, true) or 1) - 1)
  return t == topic or string.sub(t, 1, #topic + 1) == topic .. '.'
end

local out, count = {-1, ''}, 0
while true do
  local from, member, due = nil, nil, nil
  local cut = false
  for _, source in ipairs(sources) do
    local m, d = peek(source)
    if not m then
      cut = cut or source.more
    elseif not from or d < due or (d == due and before(m, member)) then
      from, member, due = source, m, d
    end
  end
  -- Where one side was cut, what the others have beyond that point must wait.
  if cut then
    break
  end
  if not from then
    out[1], out[2] = -1, ''
    break
  end
  if count == most then
    break
  end
  from.at = from.at + 2
  out[1], out[2] = due, member
  if from == plain and displaced[member] then
    member = nil
  end
  if member and wanted(member) then
    local v = redis.pcall('HMGET', ARGV[1] .. member, 'd', 'r', 'a', 'k', 'u', 'f')
    local d, r = moment(v[1]), number(v[2])
    if d and r and (v[6] and true or false) == (from == dead) then
      count = count + 1
      local n = #out
      out[n + 1], out[n + 2], out[n + 3] = d, member, r
      out[n + 4], out[n + 5] = number(v[3]) or 0, v[6] or (v[4] or v[5]) and 1 or 0
    end
  end
end
return out
