-- What the code says counts if it is new or differs from what the code said last; what an operator says, at once.
local function said_before(known, given)
  return known and request.is_declared and known.declared == given.definition
end

local function define(known, given)
  -- A new release of the code does not resume what an operator has paused.
  if request.is_declared and known then
    given.sizing.paused = known.sizing.paused
  end
  local declared = request.is_declared and given.definition or (known and known.declared)
  local version = known and known.version + 1 or 1
  local kept = { version = version, declared = declared, definition = given.definition, sizing = given.sizing }
  redis.call('HSET', KEYS[2], given.name, cmsgpack.pack(kept))
  return version
end

return answered(function()
  local versions = {}
  for place, given in ipairs(request.definitions) do
    local packed = redis.call('HGET', KEYS[2], given.name)
    local known = packed and cmsgpack.unpack(packed)
    local present = known and known.version or 0
    -- Only one is changed at a time, so nothing has been written before.
    if request.expected and request.expected ~= present then
      return { 'stale', present }
    end
    versions[place] = said_before(known, given) and known.version or define(known, given)
  end
  return { 'defined', versions }
end)
