-- Keyspace: turnpike:1:l:<name>, a lease: the version byte, its number, when it lapses in microseconds of this
-- clock, then the holder, nobody if it was released. The key stays a day longer, for the number.
-- KEYS[1]: the lease. ARGV: holder, TTL in milliseconds.
-- Returns the holder's number, or nothing if another one holds it. A new number is at least the time, so that
-- numbers grow where all keys were lost.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local number, lapses_us, holder = 0, 0, ''
local lease = redis.call('GET', KEYS[1])
if lease and lease:byte(1) == 1 then
  number, lapses_us = struct.unpack('<dd', lease, 2)
  holder = lease:sub(18)
end
if holder ~= ARGV[1] then
  if lapses_us > now_us then
    return false
  end
  number = math.max(number + 1, now_us)
end
local new = '\1' .. struct.pack('<dd', number, now_us + ARGV[2] * 1000) .. ARGV[1]
redis.call('SET', KEYS[1], new, 'PX', string.format('%.0f', ARGV[2] + 86400000))
return number
