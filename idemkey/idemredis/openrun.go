package idemredis

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/rediskey"
)

// An openRun is an entry of a scope's sorted set. The set has the runs with effects outside of the store whose outcome
// is not known yet. A member is a JSON array of namespace, scope and key. Its score is the time at which the run, or
// its lease, ends. So unknown outcomes, whose time has passed, come first: they are counted for the limit of the scope,
// and listed for those who decide.
//
// The entry is made after the claim and before the handler runs. It is removed after the record has its outcome, unless
// another run has the entry by then. A crash can leave an entry behind, which the next look at it removes. A retry that
// finds an unknown outcome makes a missing entry again.
type openRun struct {
	set, member string
	score       string // as this run has set it
}

// openRunsInfix stands between the prefix and the digest of a scope.
const openRunsInfix = "open:"

func (s *Store) openRunOf(id idemkey.Identity) *openRun {
	member, _ := json.Marshal([]string{id.Namespace, id.Scope, id.Key}) // text is always encoded
	return &openRun{set: rediskey.Of(s.opts.Prefix+openRunsInfix, idemkey.Identity{Namespace: id.Namespace, Scope: id.Scope}), member: string(member)}
}

// scriptEnter sets the end of member ARGV[1] to ARGV[2] ms from now, if its score is ARGV[3], or if ARGV[3] is empty.
// It returns the new score, and how many entries are over: their time has passed.
var scriptEnter = redis.NewScript(luaNow + `
local is = redis.call('ZSCORE', KEYS[1], ARGV[1])
local score = string.format('%.0f', now + tonumber(ARGV[2]))
if ARGV[3] == '' or is == ARGV[3] then redis.call('ZADD', KEYS[1], score, ARGV[1]) end
return {score, redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', now))}
`)

// scriptHeal adds member ARGV[1], which is over, if it is missing.
var scriptHeal = redis.NewScript(luaNow + `return redis.call('ZADD', KEYS[1], 'NX', string.format('%.0f', now), ARGV[1])`)

// scriptLeave removes member ARGV[1] if its score is ARGV[2].
var scriptLeave = redis.NewScript(`
if redis.call('ZSCORE', KEYS[1], ARGV[1]) == ARGV[2] then return redis.call('ZREM', KEYS[1], ARGV[1]) end
return 0
`)

// scriptOver returns the first ARGV[1] members that are over, each followed by its score.
var scriptOver = redis.NewScript(luaNow + `
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'WITHSCORES', 'LIMIT', 0, ARGV[1])
`)

// setEnd lets the run's lease end after left, and returns how many entries of the set are over.
func (o *openRun) setEnd(ctx context.Context, s *Store, left time.Duration) (over int, err error) {
	reply, err := s.callScript(ctx, scriptEnter, o.set, o.member, milliseconds(left), o.score).Slice()
	if err != nil {
		return 0, fmt.Errorf("note the run: %w", err)
	}
	if len(reply) == 2 {
		score, ok := reply[0].(string)
		n, ok2 := reply[1].(int64)
		if ok && ok2 {
			o.score = score
			return int(n), nil
		}
	}
	return 0, errReply
}

// heal makes a missing entry of an unknown outcome. If that fails, the next retry does.
func (o *openRun) heal(ctx context.Context, s *Store) {
	_ = s.callScript(ctx, scriptHeal, o.set, o.member).Err()
}

// remove forgets the run, whose outcome is known. If that fails, the next look at the entry removes it.
func (o *openRun) remove(ctx context.Context, s *Store) {
	if o != nil && o.score != "" {
		_ = s.callScript(ctx, scriptLeave, o.set, o.member, o.score).Err()
	}
}

// enterOpenRun notes e's run before its handler runs. If that fails, or a new key is over the limit of the scope, the
// claim is released with the mode undo.
func (s *Store) enterOpenRun(ctx context.Context, e *execution, c *idemkey.Claim, attempt int, undo idemkey.ReleaseMode) error {
	if e.open == nil {
		return nil
	}
	over, err := e.open.setEnd(ctx, s, c.Lease)
	if err == nil && attempt == 1 && c.MaxUnknown > 0 && over >= c.MaxUnknown {
		err = s.checkUnknown(ctx, e.open.set, c.MaxUnknown)
	}
	if err == nil {
		return nil
	}
	return s.forgetUnrun(ctx, e, undo, err)
}

// errEnough ends a walk.
var errEnough = errors.New("enough")

// checkUnknown returns an [*idemkey.UnknownLimitError] if as many outcomes of a set are unknown as allowed.
func (s *Store) checkUnknown(ctx context.Context, set string, allowed int) error {
	unknown := 0
	err := s.eachOpenRun(ctx, set, func(*openRecord) error {
		if unknown++; unknown >= allowed {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return &idemkey.UnknownLimitError{Limit: allowed}
	}
	return err
}

// An openRecord is a record whose outcome is unknown.
type openRecord struct {
	id idemkey.Identity
	storedRecord
}

// maxOpenRuns is how many entries of a scope are looked at.
const maxOpenRuns = 10_000

// eachOpenRun calls found for each unknown outcome of a set, until found returns an error. It removes entries whose
// outcome is known. An entry or record that cannot be read is skipped, and its error returned in the end.
func (s *Store) eachOpenRun(ctx context.Context, set string, found func(*openRecord) error) error {
	over, err := s.callScript(ctx, scriptOver, set, maxOpenRuns).StringSlice()
	if err != nil {
		return fmt.Errorf("list unknown outcomes: %w", err)
	}
	var unread error
	for i := 0; i+1 < len(over); i += 2 {
		rec, err := s.readOpenRun(ctx, set, over[i], over[i+1])
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			unread = errors.Join(unread, err)
		case rec != nil:
			if err := found(rec); err != nil {
				return err
			}
		}
	}
	return unread
}

// readOpenRun returns the record of an entry, nil if its outcome is not unknown.
func (s *Store) readOpenRun(ctx context.Context, set, member, score string) (*openRecord, error) {
	var parts [3]string
	if err := json.Unmarshal([]byte(member), &parts); err != nil {
		return nil, fmt.Errorf("%w: entry of %s: %w", idemkey.ErrRecordCorrupt, set, err)
	}
	id := idemkey.Identity{Namespace: parts[0], Scope: parts[1], Key: parts[2]}
	rec, err := s.readRecord(ctx, id)
	if err != nil {
		return nil, err
	}
	switch {
	case rec != nil && rec.State == idemkey.StateInProgress && rec.LeaseLeft > 0:
		return nil, nil // its owner could not say that it lives
	case rec != nil && (rec.State == idemkey.StateUnknown || rec.State == idemkey.StateInProgress):
		return &openRecord{id, *rec}, nil
	}
	return nil, s.callScript(ctx, scriptLeave, set, member, score).Err()
}

// EachUnknown calls found for each unknown outcome. It looks through the names of all keys of Redis for the sets that
// list them, which takes a second for some million keys and does not block Redis. What cannot be read is skipped, and
// its error returned in the end.
func (s *Store) EachUnknown(ctx context.Context, found func(idemkey.UnknownOutcome) error) error {
	report := func(r *openRecord) error {
		return found(idemkey.UnknownOutcome{ID: r.id, Attempt: r.Attempt, Since: time.Now().Add(-r.Age), EndedFor: r.over, Token: r.token, FPAlg: r.FP.Alg})
	}
	scan := func(ctx context.Context, node redis.UniversalClient) error {
		var unread error
		names := node.Scan(ctx, 0, s.opts.Prefix+openRunsInfix+"*", scanCount).Iterator()
		for names.Next(ctx) {
			err := s.eachOpenRun(ctx, names.Val(), report)
			if err != nil && !errors.Is(err, idemkey.ErrRecordCorrupt) {
				return err
			}
			unread = errors.Join(unread, err)
		}
		return errors.Join(names.Err(), unread)
	}
	var err error
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		var one sync.Mutex // found need not expect concurrent calls
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			one.Lock()
			defer one.Unlock()
			return scan(ctx, node)
		})
	} else {
		err = scan(ctx, s.client)
	}
	if err != nil {
		return fmt.Errorf("idemredis: list unknown outcomes: %w", err)
	}
	return nil
}

// scanCount is how many names Redis looks at in one call.
const scanCount = 1000

// Settle ends the unknown outcome u. Its entry is removed by the next look at it.
func (s *Store) Settle(ctx context.Context, u idemkey.UnknownOutcome, r *idemkey.Response, ttl time.Duration) error {
	state, status, header, body, keyID := idemkey.StateFailed, 0, []byte(nil), []byte(nil), ""
	if r != nil {
		var err error
		if header, err = r.MarshalHeader(); err != nil {
			return fmt.Errorf("idemredis: settle: %w", err)
		}
		state, status, body, keyID = r.State(), r.Status, r.Body, r.KeyID
	}
	changed, err := s.callScript(ctx, scriptSettle, rediskey.Of(s.opts.Prefix, u.ID), u.Token, int(state), status, header, body, keyID,
		milliseconds(ttl), rand.Text()).Int()
	switch {
	case err != nil:
		return fmt.Errorf("idemredis: settle: %w", err)
	case changed == 0:
		return fmt.Errorf("idemredis: settle: %w", idemkey.ErrDecided)
	}
	return nil
}

// scriptSettle ends the unknown outcome of the run with token ARGV[1]. The token becomes ARGV[8], so that an owner that
// was cut off cannot end its run after that. If the script is sent twice, the second one finds its own token and
// reports success. A failed record with a lease_until of 0 was decided.
var scriptSettle = redis.NewScript(luaLive + `
local r = redis.call('HMGET', KEYS[1], 'token', 'state', 'lease_until', 'expires_at')
if r[1] == ARGV[8] then return 1 end
if r[1] ~= ARGV[1] or r[4] ~= '` + strconv.Itoa(never) + `' then return 0 end
if not (r[2] == '5' or r[2] == '1' and tonumber(r[3]) <= now) then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'status', ARGV[3], 'token', ARGV[8], 'lease_until', '0')
if ARGV[2] ~= '2' then redis.call('HSET', KEYS[1], 'header', ARGV[4]) end
if ARGV[2] == '3' then redis.call('HSET', KEYS[1], 'body', ARGV[5], 'key_id', ARGV[6]) end
live(tonumber(ARGV[7]), 0)
return 1
`)

// scriptKeep makes the record with token ARGV[1], whose outcome is unknown, never expire. Its route had no
// ExternalEffects when it was claimed.
var scriptKeep = redis.NewScript(luaLive + `
local r = redis.call('HMGET', KEYS[1], 'token', 'state')
if r[1] ~= ARGV[1] or r[2] ~= '1' and r[2] ~= '5' then return 0 end
live()
return 1
`)
