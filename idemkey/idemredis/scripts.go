package idemredis

import (
	"strconv"

	"github.com/redis/go-redis/v9"
)

// never is expires_at and purge_at of a record whose outcome is not known: the largest integer that a number of Lua can be.
const never = 1<<53 - 1

// luaLive defines live, which lets the record expire ttl ms from now, and Redis remove it keep ms after that. Without a
// ttl it never expires.
var luaLive = luaNow + `
local function live(ttl, keep)
	if not ttl then
		redis.call('HSET', KEYS[1], 'expires_at', '` + strconv.Itoa(never) + `', 'purge_at', '` + strconv.Itoa(never) + `')
		redis.call('PERSIST', KEYS[1])
		return ` + strconv.Itoa(never) + `
	end
	redis.call('HSET', KEYS[1], 'expires_at', string.format('%.0f', now + ttl), 'purge_at', string.format('%.0f', now + ttl + keep))
	redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', now + ttl + keep))
	return now + ttl
end
`

// Each script has one key, so that it runs on a cluster, and reads the time from
// Redis. Each may be sent twice, since a client repeats a script that it got no
// reply to: the second run finds the changes of the first and returns the same.
//
// A hash has the fields state, token, fp, fp_alg, incarnation, attempt, created_at, lease_until,
// expires_at and purge_at (ms since 1970; expires_at and purge_at may be never). With a response it also has status,
// header, body and key_id, which names the key that the body is sealed with.
// Values are arbitrary bytes.

// luaNow sets now. TIME is seconds and microseconds.
const luaNow = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
`

// luaRead defines read, which returns the hash as decodeRecord expects it. The 0 tells
// it from a claim that was won. A time that is no number becomes a null.
const luaRead = `
local function read()
	local r = redis.call('HMGET', KEYS[1], 'state', 'fp', 'fp_alg', 'token', 'attempt',
		'lease_until', 'expires_at', 'status', 'header', 'body', 'key_id', 'created_at')
	local lease, expires = tonumber(r[6]) or false, tonumber(r[7]) or false
	local left, life = lease and math.max(0, lease - now), expires and math.max(0, expires - now)
	return {0, r[1], r[2], r[3], r[4], r[5], left, expires, life, r[8], r[9], r[10], r[11] or '', now - (tonumber(r[12]) or 0), lease and now - lease, lease == 0 and 1 or 0}
end
`

// scriptBegin makes the caller the owner of an absent record, or of the one with
// token ARGV[2] if that may still be taken over. Otherwise it returns the
// record. Of claims that race, Redis runs one first, and the others find it. A
// response that has not expired is never written over. A record that Redis has lost, and that is created again within
// its span of a TTL, has the same incarnation: ARGV[9] names the key and its TTL, ARGV[11] is that TTL, and its spans begin
// ARGV[10] ms early. Without ARGV[5] the record does not expire.
var scriptBegin = redis.NewScript(luaLive + luaRead + `
local token, from = ARGV[1], ARGV[2]
local ttl, lease, keep, attempt = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local r = redis.call('HMGET', KEYS[1], 'state', 'token', 'lease_until', 'expires_at', 'attempt', 'incarnation', 'created_at')
local state = r[1]
if state == '1' and r[2] == token then
	return {1, tonumber(r[5]), tonumber(r[4]), r[6] or ''}
end
if state or redis.call('EXISTS', KEYS[1]) == 1 then
	local lease, expires = tonumber(r[3]), tonumber(r[4]) -- nil: damaged, which read tells
	local free = lease and expires and (state == '2' or state == '5'
		or state == '1' and lease <= now
		or (state == '3' or state == '4') and expires <= now)
	if from == '' or r[2] ~= from or not free then
		return read()
	end
	redis.call('DEL', KEYS[1])
else
	attempt = '1'
end
local incarnation, created = r[6] or '', r[7] or '0'
if attempt == '1' then
	local span = string.format('%.0f', math.floor((now + tonumber(ARGV[10])) / tonumber(ARGV[11])))
	incarnation, created = string.sub(redis.sha1hex(ARGV[9] .. span), 1, 20), string.format('%.0f', now)
end
redis.call('HSET', KEYS[1], 'state', '1', 'token', token, 'fp', ARGV[3], 'fp_alg', ARGV[4], 'incarnation', incarnation, 'attempt', attempt,
	'created_at', created, 'lease_until', string.format('%.0f', now + lease))
return {1, tonumber(attempt), live(ttl, keep), incarnation}
`)

// scriptInspect reads the record and changes nothing.
var scriptInspect = redis.NewScript(luaNow + luaRead + `
return read()
`)

// scriptComplete keeps a response. It returns 0 if the record is another
// owner's or gone. A renewal may have made the key outlive the record; from
// here on it does not. With ARGV[7] the record's life begins now.
var scriptComplete = redis.NewScript(luaLive + `
local r = redis.call('HMGET', KEYS[1], 'token', 'state', 'purge_at')
if r[1] ~= ARGV[1] then return 0 end
if r[2] == ARGV[2] then return 1 end
if r[2] ~= '1' then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'status', ARGV[3], 'header', ARGV[4])
if ARGV[2] == '3' then redis.call('HSET', KEYS[1], 'body', ARGV[5], 'key_id', ARGV[6]) end
if ARGV[7] ~= '' then live(tonumber(ARGV[7]), tonumber(ARGV[8])) else redis.call('PEXPIREAT', KEYS[1], r[3]) end
return 1
`)

// scriptRelease releases the record, if it is still the caller's: for its request's next
// attempt, for a decision, or by deleting it. With ARGV[4] the record's life begins now.
var scriptRelease = redis.NewScript(luaLive + `
local r = redis.call('HMGET', KEYS[1], 'token', 'state', 'purge_at')
if r[1] ~= ARGV[1] or r[2] ~= '1' then return 0 end
if ARGV[2] == 'forget' then return redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'status', ARGV[3])
redis.call('HSET', KEYS[1], 'lease_until', string.format('%.0f', now))
if ARGV[2] == '5' then live()
elseif ARGV[4] ~= '' then live(tonumber(ARGV[4]), tonumber(ARGV[5]))
else redis.call('PEXPIREAT', KEYS[1], r[3]) end
return 1
`)

// scriptRenew lets the lease end ARGV[2] ms from now, if the record is still the
// caller's, lapsed or not. The key must not expire before its owner's lease.
var scriptRenew = redis.NewScript(luaNow + `
local r = redis.call('HMGET', KEYS[1], 'token', 'state', 'purge_at')
if r[1] ~= ARGV[1] or r[2] ~= '1' then return 0 end
local lease = now + tonumber(ARGV[2])
redis.call('HSET', KEYS[1], 'lease_until', string.format('%.0f', lease))
if lease > tonumber(r[3]) then redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', lease)) end
return 1
`)
