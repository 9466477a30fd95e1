-- Keyspace: turnpike:1:s:<stream>, a Redis stream of one field, `p`: the version byte, then the payload.
-- KEYS[1]: the stream. ARGV: payload with version, greatest length, TTL in milliseconds.
redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[2], '*', 'p', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
