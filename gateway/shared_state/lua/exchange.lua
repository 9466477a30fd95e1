-- Keyspace: turnpike:1:g, a hash: origin -> the version byte, when it lapses in milliseconds of this clock
-- (in every version), then the gauges.
-- KEYS[1]: the hash. ARGV: origin, gauges, TTL in milliseconds.
-- Returns origins and gauges of all others that have not lapsed, in turn; removes those that have.
local ttl_ms = tonumber(ARGV[3])
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], '\1' .. struct.pack('<d', now_ms + ttl_ms) .. ARGV[2])
if redis.call('PTTL', KEYS[1]) < ttl_ms then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
local others, all = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if all[i] ~= ARGV[1] then
    if struct.unpack('<d', all[i + 1], 2) <= now_ms then
      redis.call('HDEL', KEYS[1], all[i])
    elseif all[i + 1]:byte(1) == 1 then
      others[#others + 1] = all[i]
      others[#others + 1] = all[i + 1]:sub(10)
    end
  end
end
return others
