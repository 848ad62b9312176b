-- Stands before every script that needs the time or the names of fields.
--
-- The time is read once: up to Redis 7.0 TIME moves while a script runs. Redis's
-- clock decides what is due; no caller passes a time in.
--
-- Fields of a shadow hash: p payload, h headers (absent when there are none),
-- d due (ms), r rev, s schedule (absent when it is "@at" and d as RFC 3339); a attempts, from the first on; while claimed k
-- token and c claimed at (ms); f why it was given up on, while it is dead; u "1" once an attempt ended without a known outcome,
-- for the rest of this life; x "1" once a cancel came too late: no further attempt.
--
-- Lua does not roll back, and over maxmemory Redis refuses a script whose first
-- write may grow. So scripts that must drain begin with UNLINK, and those that
-- must not be half done begin with a write that is refused.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

-- Large numbers become 1.7e+15 unless they are formatted.
local function int(n)
  return string.format('%.0f', n)
end

-- Reads a number as our scripts write it. A foreign hand may have left "nan" or " 5", which
-- Lua takes for numbers and ZADD refuses, in the midst of a batch.
local function whole(v)
  return v and #v <= 16 and string.match(v, '^%d+$') and tonumber(v) or nil
end

-- Calls name with key and a list of any length: unpack has a limit of some
-- thousand values, 1,000 leaves room.
local function each(name, key, list)
  for i = 1, #list, 1000 do
    local last = math.min(i + 999, #list)
    if key then
      redis.call(name, key, unpack(list, i, last))
    else
      redis.call(name, unpack(list, i, last))
    end
  end
end
