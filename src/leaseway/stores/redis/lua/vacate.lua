-- Leave so many seats of each limit.
return answered(function(takings, now)
  for _, taking in ipairs(takings) do
    local seats = taking.level.seats
    local seat = seats[request.holder]
    if seat then
      seat.count = seat.count - request.count
      if seat.count <= 0 then
        seats[request.holder] = nil
      end
      write(taking, now)
    end
  end
  return { 'done' }
end)
