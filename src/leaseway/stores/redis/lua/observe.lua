-- What the provider said about one limit.
local notice = request.notice

local function shortest_us(sizing)
  local shortest = math.huge
  for _, window in ipairs(sizing.windows) do
    shortest = math.min(shortest, window.window_us)
  end
  return shortest < math.huge and shortest or 0
end

-- Closed until the time given, slower once for each event, and open again with one permit.
local function throttled(taking, now)
  local level, sizing = taking.level, taking.sizing
  local retry_after_us = notice.retry_after_us
    or math.max(math.floor(shortest_us(sizing) / RETRY_SHARE), RETRY_US_MIN)
  level.blocked_until = math.max(level.blocked_until, now + retry_after_us)
  level.slowed_at = level.blocked_until
  if notice.generation == level.generation then
    level.percent = math.max(math.floor(level.percent * SLOWER / 100), PERCENT_MIN)
    level.generation = level.generation + 1
  end
  paced(level, sizing, now)
  if sizing.is_metered then
    return
  end
  for _, window in ipairs(sizing.windows) do
    local bucket = level.buckets[window.window_us]
    local one_permit = level.blocked_until + full_us(window, bucket) - us(bucket.permit_ns)
    bucket.tat = math.max(bucket.tat, one_permit)
  end
end

-- Which window does a provider speak of that says when it begins anew? The shortest that lasts as long.
local function window_told(sizing)
  local longest, fitting = sizing.windows[1], nil
  for _, window in ipairs(sizing.windows) do
    if window.window_us > longest.window_us then
      longest = window
    end
    local fits = notice.reset_us and window.window_us >= notice.reset_us
    if fits and (not fitting or window.window_us < fitting.window_us) then
      fitting = window
    end
  end
  return fitting or longest
end

-- Less than we thought: believed. More: not.
local function synced(taking, now)
  local window = window_told(taking.sizing)
  if taking.sizing.is_metered then
    local room = room_in(window, taking.level, reserved_in(taking.level))
    local reset_us = math.min(notice.reset_us or window.window_us, window.window_us)
    if room > notice.remaining then
      log_use(taking.level, window.window_us, now + reset_us, room - notice.remaining)
    end
    return
  end
  local bucket = taking.level.buckets[window.window_us]
  local left_us = us(math.min(notice.remaining, window.burst) * bucket.permit_ns)
  bucket.tat = math.max(bucket.tat, now + full_us(window, bucket) - left_us)
end

return answered(function(takings, now, since)
  local taking = takings[1]
  if not taking then
    return { 'done' }
  end
  current(taking.level, taking.sizing, now, since)
  apply_call(taking, notice, now)
  if notice.throttled then
    throttled(taking, now)
  elseif notice.remaining and taking.sizing.windows[1] then
    synced(taking, now)
  end
  write(taking, now)
  return { 'done' }
end)
