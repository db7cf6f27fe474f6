-- All of the asks or none; of a refusal only the shadow queue remains.
local least, holder = request.least, request.holder
local PAUSED_US = 5000000

local function at_once(taking)
  local most = taking.sizing.concurrency or COUNT_MAX
  for _, window in ipairs(taking.sizing.windows) do
    most = math.min(most, math.floor(window.burst / taking.ask.cost))
  end
  return most
end

local function calls_in_flight(level)
  local count = 0
  for _, calls in pairs(level.in_flight) do
    count = count + calls.count
  end
  return count
end

local function in_flight_wait_us(level, now)
  local first = math.huge
  for _, calls in pairs(level.in_flight) do
    first = math.min(first, calls['until'])
  end
  return math.max(math.min(first - now, IN_FLIGHT_WAIT_US), 1)
end

local function concurrency_allowed(taking, now, since)
  local free = taking.sizing.concurrency - calls_in_flight(taking.level)
  local wait_us = free < least and in_flight_wait_us(taking.level, now) or 0
  return math.max(since + request.in_flight_grace_us - now, wait_us), free
end

-- When this much has left the window, or when to ask again because calls may end before.
local function wait_for(missing, window, level, is_reserved, now)
  local uses = {}
  for _, use in ipairs(level.used) do
    if use.window_us == window.window_us then
      table.insert(uses, use)
    end
  end
  table.sort(uses, function(one, other)
    return one['until'] < other['until']
  end)
  for _, use in ipairs(uses) do
    missing = missing - use.amount
    if missing <= 0 then
      local wait_us = use['until'] - now
      return math.max(is_reserved and math.min(wait_us, IN_FLIGHT_WAIT_US) or wait_us, 1)
    end
  end
  return IN_FLIGHT_WAIT_US
end

local function allowed_by_log(taking, longest, units, now, since)
  local level = taking.level
  local reserved = reserved_in(level)
  for _, window in ipairs(taking.sizing.windows) do
    local room = room_in(window, level, reserved)
    local missing = least * taking.ask.cost - room
    local wait_us = since + request.in_flight_grace_us - now
    if missing > 0 then
      wait_us = math.max(wait_us, wait_for(missing, window, level, reserved > 0, now))
    end
    units = math.min(units, math.floor(room / taking.ask.cost))
    if wait_us > longest.wait_us then
      longest = { wait_us = wait_us, why = string.format('its rate per %g s is used up', window.window_us / 1000000) }
    end
  end
  return longest, units
end

-- What stands longest against this ask, and how many of it would pass now.
local function allowed(taking, now, since)
  if taking.sizing.paused then
    return { wait_us = PAUSED_US, why = 'it is paused' }, 0
  end
  local longest = { wait_us = taking.level.blocked_until - now, why = 'the provider asked for a wait' }
  local units = is_half_open(taking, now) and least or COUNT_MAX
  local breaker_us, breaker_why = breaker_wait(taking, now)
  if breaker_us > math.max(longest.wait_us, 0) then
    longest = { wait_us = breaker_us, why = breaker_why }
  end
  if taking.sizing.is_metered then
    return allowed_by_log(taking, longest, units, now, since)
  end
  for _, window in ipairs(taking.sizing.windows) do
    local bucket = taking.level.buckets[window.window_us]
    local room_us = full_us(window, bucket) - math.max(bucket.tat - now, 0)
    local wait_us = us(least * taking.ask.cost * bucket.permit_ns) - room_us
    if wait_us > longest.wait_us then
      local why = string.format('its rate per %g s is used up', window.window_us / 1000000)
      longest = { wait_us = wait_us, why = why, window_us = window.window_us }
    end
    -- Where there is no room the product might pass 2^53; the wait is the answer then.
    if room_us > 0 then
      units = math.min(units, math.floor(room_us * 1000 / (taking.ask.cost * bucket.permit_ns)))
    end
  end
  if taking.sizing.concurrency then
    local wait_us, free = concurrency_allowed(taking, now, since)
    units = math.min(units, free)
    if wait_us > longest.wait_us then
      longest = { wait_us = wait_us, why = 'its concurrency limit is reached' }
    end
  end
  return longest, units
end

local function refused(taking, hindrance, now)
  if not hindrance.window_us then
    return { 'wait', hindrance.wait_us, taking.ask.name, hindrance.why }
  end
  local bucket, earliest = taking.level.buckets[hindrance.window_us], now + hindrance.wait_us
  -- Beyond a whole window, those who were given turns have left long ago.
  local turn = bucket.turn <= earliest + hindrance.window_us and math.max(bucket.turn, earliest) or earliest
  bucket.turn = turn + us(least * taking.ask.cost * bucket.permit_ns)
  write(taking, now)
  return { 'wait', turn - now, taking.ask.name, hindrance.why }
end

local function spend(taking, count, now)
  local level = taking.level
  begin_probe(taking, now, request.in_flight_us or 0)
  if taking.sizing.is_metered then
    reserve(level, holder, count * taking.ask.cost, now + request.in_flight_us)
    return write(taking, now)
  end
  for _, window in ipairs(taking.sizing.windows) do
    local bucket = level.buckets[window.window_us]
    bucket.tat = math.max(bucket.tat, now) + us(count * taking.ask.cost * bucket.permit_ns)
  end
  if taking.sizing.concurrency then
    local held = level.in_flight[holder] and level.in_flight[holder].count or 0
    level.in_flight[holder] = { count = held + count, ['until'] = now + request.in_flight_us }
  end
  write(taking, now)
end

local function granted(takings, count, now, since)
  local lease_us, generations, circuits, watched, has_breaker = math.huge, {}, {}, {}, false
  for place, taking in ipairs(takings) do
    spend(taking, count, now)
    lease_us, generations[place] = math.min(lease_us, taking.sizing.lease_us), taking.level.generation
    circuits[place] = taking.sizing.breaker and taking.level.breaker.number or -1
    watched[place] = taking.sizing.breaker ~= nil and taking.level.breaker.failures > 0
    has_breaker = has_breaker or taking.sizing.breaker ~= nil
  end
  if not has_breaker then
    circuits, watched = {}, {}
  end
  return { 'granted', count, now, since, lease_us, generations, circuits, watched }
end

return answered(function(takings, now, since)
  local count, longest, limiting = request.most, { wait_us = 0 }, nil
  for _, taking in ipairs(takings) do
    current(taking.level, taking.sizing, now, since)
    local most_at_once = at_once(taking)
    if least > most_at_once then
      return { 'never', taking.ask.name, most_at_once * taking.ask.cost }
    end
    local hindrance, units = allowed(taking, now, since)
    count = math.min(count, units)
    if hindrance.wait_us > longest.wait_us then
      longest, limiting = hindrance, taking
    end
  end
  if limiting then
    return refused(limiting, longest, now)
  end
  return granted(takings, count, now, since)
end)
