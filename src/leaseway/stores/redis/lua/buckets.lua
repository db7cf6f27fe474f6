-- What leaseway.domain.limits.buckets says, in Lua. Every verb's file stands behind this one and is one script with it.
--
-- KEYS[1]   hash: whose memory this is (`identity`), the fence (`since`), and the time: it was `latest` when the server's
--           clock said `at`
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
-- See leaseway.domain.store_clock. Between two calls, held time advances by a minute at most: the server's clock may have
-- been set right meanwhile.
local STEP_US_MAX, HELD_US_MAX, UNSEEN_US_MAX = 1000000, 3600000000, 60000000

local request = cmsgpack.unpack(ARGV[1])

local function up(number, by)
  local whole = math.floor(number / by)
  return whole * by < number and whole + 1 or whole
end

local function us(ns)
  return up(ns, 1000)
end

-- -- the clock and the fence ----------------------------------------------------------------------------------------

local memory = redis.call('HMGET', KEYS[1], 'identity', 'since', 'latest', 'at')

local function wall_clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- The server's clock, or the time that goes on where it was when that clock was set back.
local function clock()
  if request.now then
    return request.now
  end
  local wall = wall_clock()
  local latest, at = tonumber(memory[3] or 0), tonumber(memory[4] or 0)
  local back_us, now = latest - wall, wall
  local is_held = back_us > STEP_US_MAX and back_us <= HELD_US_MAX
  if is_held then
    now = latest + math.min(math.max(math.floor((wall - at) * 9 / 10), 0), UNSEEN_US_MAX)
  end
  if is_held or math.abs(back_us) > STEP_US_MAX then
    redis.call('HSET', KEYS[1], 'latest', string.format('%.0f', now), 'at', string.format('%.0f', wall))
  end
  return now
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
  local since = tonumber(memory[2] or -1)
  if memory[1] == here then
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

-- -- limits that are logged: leaseway.domain.limits.sliding_log ------------------------------------------------------

local LOGGED, SLICES = -1, 60

local function reserved_in(level)
  local reserved = 0
  for _, calls in pairs(level.in_flight) do
    reserved = reserved + calls.count
  end
  return reserved
end

local function room_in(window, level, reserved)
  local room = math.floor(window.burst * level.percent / 100) - reserved
  for _, use in ipairs(level.used) do
    if use.window_us == window.window_us then
      room = room - use.amount
    end
  end
  return room
end

local function keep_counted(level, sizing, now)
  local lengths, kept = {}, {}
  for _, window in ipairs(sizing.windows) do
    lengths[window.window_us] = true
  end
  for _, use in ipairs(level.used or {}) do
    if use['until'] > now and lengths[use.window_us] then
      table.insert(kept, use)
    end
  end
  level.used = kept
end

local function log_use(level, window_us, counts_until, amount)
  local bucket = level.buckets[window_us]
  bucket.tat = math.max(bucket.tat, counts_until)
  for _, use in ipairs(level.used) do
    if use.window_us == window_us and use['until'] == counts_until then
      use.amount = use.amount + amount
      return
    end
  end
  table.insert(level.used, { window_us = window_us, ['until'] = counts_until, amount = amount })
end

local function log_call(level, sizing, at, amount)
  for _, window in ipairs(amount > 0 and sizing.windows or {}) do
    local slice_us = math.max(math.floor(window.window_us / SLICES), 1)
    log_use(level, window.window_us, (math.floor(at / slice_us) + 1) * slice_us + window.window_us, amount)
  end
end

local function reserve(level, holder, amount, lasts_until)
  local held = level.in_flight[holder] or { count = 0, ['until'] = 0 }
  level.in_flight[holder] = { count = held.count + amount, ['until'] = math.max(held['until'], lasts_until) }
end

local function relog(level, sizing, now)
  local before = level.buckets
  local is_seen = next(before) ~= nil
  level.buckets = {}
  keep_counted(level, sizing, now)
  for _, window in ipairs(sizing.windows) do
    local bucket = before[window.window_us]
    local is_new = not bucket or bucket.turn ~= LOGGED
    level.buckets[window.window_us] = { tat = is_new and 0 or bucket.tat, turn = LOGGED, permit_ns = window.permit_ns }
    local is_full = sizing.start == 'full' and not is_seen
    local empty_until = window.window_us + ((is_seen or sizing.start == 'empty') and now or level.since)
    if is_new and not is_full and empty_until > now then
      log_use(level, window.window_us, empty_until, window.burst)
    end
  end
  for holder, calls in pairs(level.in_flight) do
    if calls['until'] <= now then
      log_call(level, sizing, calls['until'], calls.count)
      level.in_flight[holder] = nil
    end
  end
  keep_counted(level, sizing, now)
end

local function paced(level, sizing, now)
  if sizing.is_metered then
    return relog(level, sizing, now)
  end
  local is_seen, buckets = next(level.buckets) ~= nil, {}
  for _, window in ipairs(sizing.windows) do
    local permit_ns = slowed_ns(window.permit_ns, level.percent)
    local bucket = level.buckets[window.window_us]
    if not bucket or bucket.turn == LOGGED then
      local is_empty = is_seen or sizing.start == 'empty'
      local fill_us = (is_empty or sizing.start ~= 'full') and us(window.burst * permit_ns) or 0
      bucket = { tat = (is_empty and now or level.since) + fill_us, turn = 0, permit_ns = permit_ns }
    elseif bucket.permit_ns ~= permit_ns then
      local away_us = math.ceil(math.max(bucket.tat - now, 0) * (permit_ns / bucket.permit_ns))
      -- What was used of a larger limit has left the window by then. It must not close a smaller one for months.
      local most_us = math.max(window.window_us, us(window.burst * permit_ns)) + math.max(level.blocked_until - now, 0)
      bucket = { tat = now + math.min(away_us, most_us), turn = bucket.turn, permit_ns = permit_ns }
    end
    buckets[window.window_us] = bucket
  end
  level.buckets, level.used = buckets, {}
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
    level.since, level.buckets, level.in_flight, level.used = since, {}, {}, {}
  end
  recovered(level, sizing, now)
  if sizing.is_metered then
    relog(level, sizing, now)
    return level
  end
  for holder, calls in pairs(level.in_flight) do
    if calls['until'] <= now then
      level.in_flight[holder] = nil
    end
  end
  paced(level, sizing, now)
  return level
end

-- -- the circuit breaker: leaseway.domain.limits.breaker -------------------------------------------------------------

local OPEN_US, OPEN_US_MAX, DOUBLED_MAX = 10000000, 300000000, 5
local FAILURES_US, PROBE_US_MIN, PROBED_US = 600000000, 10000000, 1000000

local function closed_breaker(number)
  return { failures = 0, failed_at = 0, trips = 0, open_until = 0, probe_until = 0, number = number }
end

local function is_half_open(taking, now)
  local breaker = taking.level.breaker
  return taking.sizing.breaker and breaker.open_until > 0 and math.max(breaker.open_until, breaker.probe_until) <= now
end

-- How long no call may leave, and why.
local function breaker_wait(taking, now)
  local breaker = taking.level.breaker
  if not taking.sizing.breaker or breaker.open_until == 0 then
    return 0
  end
  if breaker.open_until > now then
    return breaker.open_until - now, 'its circuit breaker is open'
  end
  local probed = 'its circuit breaker is half-open, and one call probes the provider'
  return math.min(math.max(breaker.probe_until - now, 0), PROBED_US), probed
end

local function begin_probe(taking, now, in_flight_us)
  if is_half_open(taking, now) then
    taking.level.breaker.probe_until = now + math.max(in_flight_us, PROBE_US_MIN)
  end
end

local function trip(breaker, now)
  local open_us = math.min(OPEN_US * 2 ^ math.min(breaker.trips, DOUBLED_MAX), OPEN_US_MAX)
  breaker.trips, breaker.open_until, breaker.probe_until = breaker.trips + 1, now + open_us, 0
  breaker.number = breaker.number + 1
end

-- How a call has ended.
local function apply_call(taking, notice, now)
  local breaker, threshold = taking.level.breaker, taking.sizing.breaker
  if not threshold or notice.circuit ~= breaker.number then
    return
  end
  if notice.answered then
    taking.level.breaker = closed_breaker(breaker.number + (breaker.open_until > 0 and 1 or 0))
  elseif notice.failed then
    local is_row = breaker.failures > 0 and now - breaker.failed_at <= FAILURES_US
    breaker.failures = (is_row or breaker.open_until > 0) and breaker.failures + 1 or 1
    breaker.failed_at = now
    if breaker.open_until > 0 or breaker.failures >= threshold then
      trip(breaker, now)
    end
  end
end

local function full_us(window, bucket)
  return us(window.burst * bucket.permit_ns)
end

-- -- reading and writing --------------------------------------------------------------------------------------------

local function new_level()
  return {
    since = -1, blocked_until = 0, percent = 100, generation = 0, slowed_at = 0, buckets = {}, in_flight = {}, used = {},
    breaker = closed_breaker(0),
  }
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
  local latest = math.max(level.blocked_until, level.breaker.failed_at, level.breaker.open_until, level.breaker.probe_until)
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
