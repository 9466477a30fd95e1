-- Keyspace: turnpike:1:e:<key>, an entry: a byte that is the value's version, then the value.
-- KEYS[1]: the entry. ARGV: value with version, TTL in milliseconds.
-- Returns what stands there afterwards: what was there, unless its version is another one.
local there = redis.call('GET', KEYS[1])
if there and there ~= ARGV[1] and there:byte(1) == ARGV[1]:byte(1) then
  return there
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
