-- Replace the holder's in-flight calls, whatever the level said before.
return answered(function(takings, now, since)
  for _, taking in ipairs(takings) do
    local level = current(taking.level, taking.sizing, now, since)
    if taking.sizing.is_metered then
      local calls = level.in_flight[request.holder]
      level.in_flight[request.holder] = { count = 0, ['until'] = calls and calls['until'] or 0 }
      reserve(level, request.holder, request.count * taking.ask.cost, now + request.in_flight_us)
    else
      level.in_flight[request.holder] = { count = request.count, ['until'] = now + request.in_flight_us }
    end
    write(taking, now)
  end
  return { 'done' }
end)
