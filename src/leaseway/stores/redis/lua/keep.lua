-- So many seats are this holder's, whatever was known of them before: calls that are under way are a fact.
return answered(function(takings, now, since)
  for _, taking in ipairs(takings) do
    local level = current(taking.level, taking.sizing, now, since)
    level.seats[request.holder] = { count = request.count, ['until'] = now + request.seat_us }
    write(taking, now)
  end
  return { 'done' }
end)
