-- What the code says counts if it is new or differs from what the code said last; what an operator says, at once.
local function said_before(known, given)
  return known and request.is_declared and known.declared == given.definition
end

local function define(known, given)
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
    versions[place] = said_before(known, given) and known.version or define(known, given)
  end
  return { 'defined', versions }
end)
