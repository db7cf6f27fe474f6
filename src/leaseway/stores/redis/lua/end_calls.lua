-- End `count` in-flight calls of the holder, for each limit. `used`: what they used of limits that are logged.
return answered(function(takings, now, since)
  for _, taking in ipairs(takings) do
    local level, sizing, count = taking.level, taking.sizing, request.count
    if sizing.is_metered then
      count = count * taking.ask.cost
      current(level, sizing, now, since)
      log_call(level, sizing, now, request.used[1] and request.used[taking.place] or count)
    end
    local calls = level.in_flight[request.holder]
    if calls then
      calls.count = calls.count - count
      if calls.count <= 0 then
        level.in_flight[request.holder] = nil
      end
    end
    if calls or sizing.is_metered then
      write(taking, now)
    end
  end
  return { 'done' }
end)
