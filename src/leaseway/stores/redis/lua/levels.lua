-- Each level as it stands now. Nothing of it is written.
return answered(function(takings, now, since)
  local levels = {}
  for place, taking in ipairs(takings) do
    levels[place] = current(taking.level, taking.sizing, now, since)
  end
  return { 'seen', now, levels }
end)
