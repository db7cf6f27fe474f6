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

-- What stands longest against this ask, and how many of it would pass now.
local function allowed(taking, now, since)
  if taking.sizing.paused then
    return { wait_us = PAUSED_US, why = 'it is paused' }, 0
  end
  local longest = { wait_us = taking.level.blocked_until - now, why = 'the provider asked for a wait' }
  local units = COUNT_MAX
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
  local lease_us, generations = math.huge, {}
  for place, taking in ipairs(takings) do
    spend(taking, count, now)
    lease_us, generations[place] = math.min(lease_us, taking.sizing.lease_us), taking.level.generation
  end
  return { 'granted', count, now, since, lease_us, generations }
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
