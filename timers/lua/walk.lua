-- Stands before the scripts that walk the keyspace: what does not fit together, said once
-- for the one that mends it and the one that only tells.

-- Looks at a stretch of the keys that begin with base and gives the next cursor. For each
-- of them it calls visit with the key, its member, the score that the backup set due has
-- for it or false, what is amiss or nil, and the due time of a shadow that is whole:
--
--   "unknown"  a whole shadow without a score
--   "unlisted" a whole shadow of a dead timer that the set of those does not have
--   "rest"     no whole shadow, and no score
--   "stray"    a trigger of no timer
--
-- What has a TTL ends by itself and is no rest and no stray; no shadow of ours has one.
-- COUNT is about how many there are at a time: a table in the middle of its growth may
-- give more.
local function walk(base, cursor, count, due, dead, visit)
  local page = redis.call('SCAN', cursor, 'MATCH', (string.gsub(base, '[%*%?%[%]\\]', '\\%0')) .. '[ht]:*', 'COUNT', count)
  local keys = page[2]
  for first = 1, #keys, 1000 do
    local members = {}
    for i = first, math.min(first + 999, #keys) do
      members[#members + 1] = string.sub(keys[i], #base + 3)
    end
    local known = redis.call('ZMSCORE', due, unpack(members))
    for i = 1, #members do
      local key, amiss, at = keys[first + i - 1], nil, nil
      if not known[i] then
        local shadow, v = string.sub(key, #base + 1, #base + 1) == 'h', nil
        if shadow then
          v = redis.pcall('HMGET', key, 'd', 'r', 'p', 'f')
        end
        if v and not v.err and moment(v[1]) and number(v[2]) and v[3] then
          at = v[1]
          if not v[4] then
            amiss = 'unknown'
          elseif not redis.pcall('ZSCORE', dead, members[i]) then -- nor where that is of a foreign type
            amiss = 'unlisted'
          end
        elseif redis.call('PTTL', key) == -1 then
          amiss = shadow and 'rest' or 'stray'
        end
      end
      visit(key, members[i], known[i], amiss, at)
    end
  end
  return page[1]
end
