-- What leaseway.domain.limits.buckets says, in Lua. Every verb's file stands behind this one and is one script with it.
--
-- KEYS[1]   hash: whose memory this is (`identity`), and the fence (`since`)
-- KEYS[2]   hash: a limit's name to its definition, packed
-- KEYS[3…]  a level each, packed, in the order of the asks
-- ARGV[1]   the request, packed
--
-- Numbers are doubles: every sum and product here is a whole number below 2^53, where they are exact, and so is
-- math.floor(a / b). They come and go packed, never as text, which would be 1.75e+15 and lose digits.

local SLOWER, PERCENT_MIN, FASTER = 70, 10, 5
local QUIET_US_MIN, RETRY_SHARE, RETRY_US_MIN = 10000000, 10, 1000000
local IN_FLIGHT_WAIT_US = 500000
local COUNT_MAX = 1000000000
-- What does not matter any more is kept for another day: a clock may be set back, and a window that an operator adds to a
-- limit starts empty only if it is known that the limit was in use.
local IDLE_MS = 86400000
local TTL_MS_MAX = 2 ^ 50

local request = cmsgpack.unpack(ARGV[1])

local function up(number, by)
  local whole = math.floor(number / by)
  return whole * by < number and whole + 1 or whole
end

local function us(ns)
  return up(ns, 1000)
end

-- -- the clock and the fence ----------------------------------------------------------------------------------------

local function clock()
  if request.now then
    return request.now
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- A restart changes the run. A failover changes the history, even if the old primary comes back later without having
-- restarted. So does the first replica of a server, which loses nothing, but that cannot be told from here.
local function identity()
  local info = redis.call('INFO', 'server', 'replication')
  return string.match(info, 'run_id:(%w+)') .. ':' .. string.match(info, 'master_replid:(%w+)')
end

-- Memory that another server wrote, or this one before a restart, may lack what happened last.
local function fenced(now)
  local here = identity()
  local known = redis.call('HMGET', KEYS[1], 'identity', 'since')
  local since = tonumber(known[2] or -1)
  if known[1] == here then
    return since
  end
  since = since == now and now + 1 or now
  redis.call('HSET', KEYS[1], 'identity', here, 'since', string.format('%.0f', since))
  return since
end

-- -- what time and new definitions do -------------------------------------------------------------------------------

local function quiet_us_of(sizing)
  local shortest = math.huge
  for _, window in ipairs(sizing.windows) do
    shortest = math.min(shortest, window.window_us)
  end
  return math.max(shortest < math.huge and shortest or 0, QUIET_US_MIN)
end

-- The hundredfold of a long pace passes 2^53, so the whole part is taken out before.
local function slowed_ns(permit_ns, percent)
  local whole = math.floor(permit_ns / percent)
  return whole * 100 + up((permit_ns - whole * percent) * 100, percent)
end

local function paced(level, sizing, now)
  local is_seen, buckets = next(level.buckets) ~= nil, {}
  for _, window in ipairs(sizing.windows) do
    local permit_ns = slowed_ns(window.permit_ns, level.percent)
    local bucket = level.buckets[window.window_us]
    if not bucket then
      local empty_at = is_seen and now or level.since
      bucket = { tat = empty_at + us(window.burst * permit_ns), turn = 0, permit_ns = permit_ns }
    elseif bucket.permit_ns ~= permit_ns then
      local away_us = math.ceil(math.max(bucket.tat - now, 0) * (permit_ns / bucket.permit_ns))
      -- What was used of a larger limit has left the window by then. It must not close a smaller one for months.
      local most_us = math.max(window.window_us, us(window.burst * permit_ns)) + math.max(level.blocked_until - now, 0)
      bucket = { tat = now + math.min(away_us, most_us), turn = bucket.turn, permit_ns = permit_ns }
    end
    buckets[window.window_us] = bucket
  end
  level.buckets = buckets
end

local function recovered(level, sizing, now)
  local quiet_us = quiet_us_of(sizing)
  if level.percent < 100 and now - level.slowed_at >= quiet_us then
    local spans = math.floor((now - level.slowed_at) / quiet_us)
    level.percent = math.min(100, level.percent + FASTER * spans)
    level.slowed_at = level.slowed_at + spans * quiet_us
  end
end

local function current(level, sizing, now, since)
  if level.since ~= since then
    level.since, level.buckets, level.in_flight = since, {}, {}
  end
  recovered(level, sizing, now)
  for holder, calls in pairs(level.in_flight) do
    if calls['until'] <= now then
      level.in_flight[holder] = nil
    end
  end
  paced(level, sizing, now)
  return level
end

local function full_us(window, bucket)
  return us(window.burst * bucket.permit_ns)
end

-- -- reading and writing --------------------------------------------------------------------------------------------

local function new_level()
  return { since = -1, blocked_until = 0, percent = 100, generation = 0, slowed_at = 0, buckets = {}, in_flight = {} }
end

-- The requests with their stored state, and the first limit that is not defined, if any.
local function read(asks)
  local takings, limits, keys, unknown = {}, {}, {}, nil
  for place, ask in ipairs(asks) do
    limits[place], keys[place] = ask.limit, KEYS[2 + place]
  end
  local definitions = redis.call('HMGET', KEYS[2], unpack(limits))
  local levels = redis.call('MGET', unpack(keys))
  for place, ask in ipairs(asks) do
    if definitions[place] then
      table.insert(takings, {
        ask = ask,
        place = place,
        key = keys[place],
        sizing = cmsgpack.unpack(definitions[place]).sizing,
        level = levels[place] and cmsgpack.unpack(levels[place]) or new_level(),
      })
    else
      unknown = unknown or ask.limit
    end
  end
  return takings, unknown
end

-- When nothing that is known of a level will matter any more.
local function settled_at(level, sizing)
  local latest = level.blocked_until
  for _, bucket in pairs(level.buckets) do
    latest = math.max(latest, bucket.tat, bucket.turn)
  end
  for _, calls in pairs(level.in_flight) do
    latest = math.max(latest, calls['until'])
  end
  if level.percent < 100 then
    latest = math.max(latest, level.slowed_at + up(100 - level.percent, FASTER) * quiet_us_of(sizing))
  end
  return latest
end

local function write(taking, now)
  local left_us = math.max(settled_at(taking.level, taking.sizing) - now, 0)
  local ttl_ms = math.min(up(left_us, 1000) + IDLE_MS, TTL_MS_MAX)
  redis.call('SET', taking.key, cmsgpack.pack(taking.level), 'PX', string.format('%.0f', ttl_ms))
end

-- -- answering ------------------------------------------------------------------------------------------------------

-- Who asks under another fence does not know yet that definitions may have been lost, too.
local function answered(verb)
  local now = clock()
  local since = fenced(now)
  if request.since ~= since then
    return cmsgpack.pack({ 'fenced', since })
  end
  local takings, unknown = {}, nil
  if request.asks and request.asks[1] then
    takings, unknown = read(request.asks)
  end
  if unknown and request.must_be_known then
    return cmsgpack.pack({ 'unknown', unknown })
  end
  return cmsgpack.pack(verb(takings, now, since))
end
