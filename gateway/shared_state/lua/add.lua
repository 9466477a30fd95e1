-- Keyspace: turnpike:1:n:<key>, a row of numbers: a hash with the fields 1, 2 and so on
-- KEYS[1]: the row. ARGV: TTL in milliseconds, then what to add to each, then what each begins with.
-- Returns what stands there afterwards, as texts.
local count = (#ARGV - 1) / 2
local is_new = redis.call('EXISTS', KEYS[1]) == 0
local row = {}
for i = 1, count do
  if is_new then
    redis.call('HSET', KEYS[1], i, ARGV[1 + count + i])
  end
  row[i] = redis.call('HINCRBYFLOAT', KEYS[1], i, ARGV[1 + i])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return row
