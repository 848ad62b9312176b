-- Looks at all records of one partition in one step and returns what is wrong
-- with them, a line each, at most ARGV[3] lines.
--
-- KEYS[1]  <prefix>:{p}:due; all other keys of the partition begin like it
-- ARGV[1]  <prefix>:{p}:
-- ARGV[2]  how long a claim may have lapsed, ms
-- ARGV[3]  the most lines
--
-- It writes nothing, but Redis expires the due trigger keys that it meets. It
-- names keys that it did not declare: they are in the slot of KEYS[1].
local base, slack, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due, tried, dead, rev = base .. 'due', base .. 'tried', base .. 'dead', base .. 'rev'
local want = {[due] = 'zset', [tried] = 'zset', [dead] = 'zset', [rev] = 'string'}
local wrong, seen = {}, {}

local function report(what, key)
  if #wrong < most then wrong[#wrong + 1] = what .. ': ' .. key end
end

local function each(command, key, f)
  local cursor = '0'
  repeat
    local page = redis.call(command, key, cursor, 'COUNT', 1000)
    for i = 1, #page[2], 2 do f(page[2][i], tonumber(page[2][i + 1])) end
    cursor = page[1]
  until cursor == '0'
end

local function look(key)
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return end -- it expired just now
  if want[key] then
    if kind ~= want[key] then report('a ' .. kind .. ', want a ' .. want[key], key) end
    return
  end
  local part, member = key:sub(#base + 1, #base + 2), key:sub(#base + 3)
  if part == 't:' then
    if kind ~= 'string' then report('trigger key that is a ' .. kind, key) end
    if redis.call('PTTL', key) == -1 then report('trigger key without a TTL', key) end
    if not redis.call('ZSCORE', due, member) then report('trigger key without a member of due', key) end
  elseif part == 'h:' then
    if kind ~= 'hash' then
      report('shadow that is a ' .. kind, key)
      return
    end
    if redis.call('PTTL', key) ~= -1 then report('shadow with a TTL', key) end
    if redis.call('HEXISTS', key, 'f') == 0 then
      if not redis.call('ZSCORE', due, member) then report('shadow without a member of due', key) end
      return
    end
    local score, d = redis.call('ZSCORE', dead, member), redis.call('HGET', key, 'd')
    if not score then
      report('dead shadow without a member of dead', key)
    elseif tonumber(score) ~= tonumber(d or '') then
      report('member of dead whose score is not its due time', key)
    end
    if redis.call('ZSCORE', due, member) then report('dead shadow with a member of due', key) end
    if redis.call('ZSCORE', tried, member) then report('dead shadow with a member of tried', key) end
    if redis.call('HEXISTS', key, 'k') == 1 then report('dead shadow that is claimed', key) end
  else
    report('unknown key', key)
  end
end

local cursor, pattern = '0', base:gsub('[%*%?%[%]\\]', '\\%0') .. '*'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', 1000)
  for _, key in ipairs(page[2]) do
    if not seen[key] then
      seen[key] = true
      look(key)
    end
  end
  cursor = page[1]
until cursor == '0'

if redis.call('TYPE', due).ok == 'zset' then
  each('ZSCAN', due, function(member, score)
    local shadow = base .. 'h:' .. member
    local kind = redis.call('TYPE', shadow).ok
    if kind == 'none' then
      report('member of due without a shadow', member)
    elseif kind == 'hash' then
      local claim = redis.call('HGET', shadow, 'k')
      if claim and claim ~= '' and score < now - slack then
        report(string.format('claim that lapsed %.0f ms ago', now - score), member)
      end
    end
  end)
end
if redis.call('TYPE', tried).ok == 'zset' then
  each('ZSCAN', tried, function(member)
    if redis.call('EXISTS', base .. 'h:' .. member) == 0 then report('member of tried without a shadow', member) end
  end)
end
if redis.call('TYPE', dead).ok == 'zset' then
  each('ZSCAN', dead, function(member)
    if redis.call('TYPE', base .. 'h:' .. member).ok ~= 'hash' then
      report('member of dead without a shadow', member)
    elseif redis.call('HEXISTS', base .. 'h:' .. member, 'f') == 0 then
      report('member of dead that is not dead', member)
    end
  end)
end
return wrong
