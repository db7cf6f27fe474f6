-- Replace the holder's in-flight calls, whatever the level said before.
return answered(function(takings, now, since)
  for _, taking in ipairs(takings) do
    local level = current(taking.level, taking.sizing, now, since)
    level.in_flight[request.holder] = { count = request.count, ['until'] = now + request.in_flight_us }
    write(taking, now)
  end
  return { 'done' }
end)
