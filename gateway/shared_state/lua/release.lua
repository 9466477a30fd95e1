-- Keyspace: turnpike:1:l:<name>, a lease: the version byte, its number, when it lapses in microseconds of this
-- clock, then the holder, nobody if it was released. The key stays a day longer, for the number.
-- KEYS[1]: the lease. ARGV: holder.
local lease = redis.call('GET', KEYS[1])
if lease and lease:byte(1) == 1 and lease:sub(18) == ARGV[1] then
  redis.call('SET', KEYS[1], lease:sub(1, 9) .. struct.pack('<d', 0), 'PX', 86400000)
end
