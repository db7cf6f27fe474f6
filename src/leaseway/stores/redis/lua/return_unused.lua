-- Tokens that were not used are worth less with every moment, and nothing under another fence or after a refusal.
local function is_worthless(taking, age_us)
  local level = taking.level
  return level.since ~= request.granted_since or level.generation ~= request.generations[taking.place] or age_us < 0
end

local function credit(taking, age_us)
  for _, window in ipairs(taking.sizing.windows) do
    local bucket = taking.level.buckets[window.window_us]
    if bucket then
      local worth_us = math.floor(request.count * taking.ask.cost * bucket.permit_ns / 1000) - age_us
      -- After a change to a much slower pace this is more than there ever was, and no number to keep.
      bucket.tat = math.max(bucket.tat - math.max(worth_us, 0), 0)
    end
  end
end

return answered(function(takings, now)
  local age_us = now - request.granted_at
  for _, taking in ipairs(takings) do
    if not taking.sizing.is_metered and not is_worthless(taking, age_us) then
      credit(taking, age_us)
      write(taking, now)
    end
  end
  return { 'done' }
end)
