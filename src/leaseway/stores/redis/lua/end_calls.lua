-- End `count` in-flight calls of the holder, for each limit.
return answered(function(takings, now)
  for _, taking in ipairs(takings) do
    local in_flight = taking.level.in_flight
    local calls = in_flight[request.holder]
    if calls then
      calls.count = calls.count - request.count
      if calls.count <= 0 then
        in_flight[request.holder] = nil
      end
      write(taking, now)
    end
  end
  return { 'done' }
end)
