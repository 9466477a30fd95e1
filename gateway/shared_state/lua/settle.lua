-- Keyspace: turnpike:1:b:<key>, a bucket: the version byte, what was left, and when in seconds of this clock.
-- KEYS[1]: the bucket; without the key it is full. ARGV: amount to give back, limit, refill per second.
local amount, limit, per_s = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now_s = time[1] + time[2] / 1e6
local left = limit
local bucket = redis.call('GET', KEYS[1])
if bucket and bucket:byte(1) == 1 then
  local was, at_s = struct.unpack('<dd', bucket, 2)
  left = math.min(limit, was + math.max(0, now_s - at_s) * per_s)
end
left = math.min(limit, left + amount)
-- It lapses when it is full again, within a year.
local full_ms = math.min(31536000000, math.ceil((limit - left) / per_s * 1000) + 1)
redis.call('SET', KEYS[1], '\1' .. struct.pack('<dd', left, now_s), 'PX', string.format('%.0f', full_ms))
