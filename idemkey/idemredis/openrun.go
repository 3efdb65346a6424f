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

// An openRun is an entry of a scope's sorted set of runs with effects outside of the store that have not ended with a
// known outcome. The set has entries in the order of their time, as JSON arrays of namespace, scope and key. It bounds the
// unknown outcomes of a scope, and lists them for those who decide.
//
// The entry is made after the claim and before the handler runs, and removed after the record has its outcome. So a crash
// leaves an entry too many, which the next look at it removes. A retry that finds an unknown outcome makes a missing entry
// again.
type openRun struct{ set, member string }

// openRunsInfix stands between the prefix and the digest of a scope.
const openRunsInfix = "open:"

func (s *Store) openRunOf(id idemkey.Identity) *openRun {
	member, _ := json.Marshal([]string{id.Namespace, id.Scope, id.Key}) // text is always encoded
	return &openRun{set: rediskey.Of(s.opts.Prefix+openRunsInfix, idemkey.Identity{Namespace: id.Namespace, Scope: id.Scope}), member: string(member)}
}

// scriptEnter adds member ARGV[1] at time ARGV[2] and returns how many there are.
var scriptEnter = redis.NewScript(`
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
return redis.call('ZCARD', KEYS[1])
`)

// scriptLeave removes member ARGV[1] if its time is ARGV[2], or that is empty.
var scriptLeave = redis.NewScript(`
if ARGV[2] == '' or redis.call('ZSCORE', KEYS[1], ARGV[1]) == ARGV[2] then return redis.call('ZREM', KEYS[1], ARGV[1]) end
return 0
`)

func (o *openRun) add(ctx context.Context, s *Store) error {
	_, err := o.addAndCount(ctx, s)
	return err
}

func (o *openRun) addAndCount(ctx context.Context, s *Store) (int, error) {
	n, err := s.callScript(ctx, scriptEnter, o.set, o.member, time.Now().UnixMilli()).Int()
	if err != nil {
		return 0, fmt.Errorf("note the run: %w", err)
	}
	return n, nil
}

// remove forgets the run, whose outcome is known. If that fails, the next look at the entry removes it.
func (o *openRun) remove(ctx context.Context, s *Store) {
	if o != nil {
		_ = s.callScript(ctx, scriptLeave, o.set, o.member, "").Err()
	}
}

// enterOpenRun notes e's run before its handler runs. A new key that is one too many is given back.
func (s *Store) enterOpenRun(ctx context.Context, e *execution, c *idemkey.Claim, attempt int) error {
	if e.open == nil {
		return nil
	}
	n, err := e.open.addAndCount(ctx, s)
	if err != nil || attempt > 1 || c.MaxUnknown == 0 || n <= c.MaxUnknown {
		return err // after an error the claim lapses, and its handler has not run
	}
	unknown := 0
	err = s.eachOpenRun(ctx, e.open.set, func(run *openRecord) error {
		unknown++
		return nil
	})
	if err != nil || unknown < c.MaxUnknown {
		return err
	}
	return errors.Join(&idemkey.UnknownLimitError{Limit: c.MaxUnknown}, e.Release(ctx, idemkey.Forget, 0))
}

// An openRecord is a record whose outcome is unknown.
type openRecord struct {
	id idemkey.Identity
	storedRecord
}

// openRunsPage is how many entries are read at a time.
const openRunsPage = 100

// eachOpenRun calls found for each unknown outcome of a set, and removes the entries of others.
func (s *Store) eachOpenRun(ctx context.Context, set string, found func(*openRecord) error) error {
	for from := int64(0); ; {
		entries, err := s.client.ZRangeWithScores(ctx, set, from, from+openRunsPage-1).Result()
		if err != nil {
			return fmt.Errorf("list unknown outcomes: %w", err)
		}
		kept, err := s.lookAtOpenRuns(ctx, set, entries, found)
		if err != nil || len(entries) < openRunsPage {
			return err
		}
		from += int64(kept)
	}
}

// lookAtOpenRuns returns how many of entries stay in the set.
func (s *Store) lookAtOpenRuns(ctx context.Context, set string, entries []redis.Z, found func(*openRecord) error) (kept int, err error) {
	for _, entry := range entries {
		var parts [3]string
		if err := json.Unmarshal([]byte(entry.Member.(string)), &parts); err != nil {
			return kept, fmt.Errorf("%w: entry of %s: %w", idemkey.ErrRecordCorrupt, set, err)
		}
		id := idemkey.Identity{Namespace: parts[0], Scope: parts[1], Key: parts[2]}
		rec, err := s.readRecord(ctx, id)
		if err != nil {
			return kept, err
		}
		open := rec != nil && (rec.State == idemkey.StateUnknown || rec.State == idemkey.StateInProgress)
		if !open {
			if err := s.callScript(ctx, scriptLeave, set, entry.Member, strconv.FormatFloat(entry.Score, 'f', -1, 64)).Err(); err != nil {
				return kept, fmt.Errorf("forget a known outcome: %w", err)
			}
			continue
		}
		kept++
		if rec.State == idemkey.StateUnknown || rec.LeaseLeft == 0 {
			if err := found(&openRecord{id, *rec}); err != nil {
				return kept, err
			}
		}
	}
	return kept, nil
}

// EachUnknown calls found for each unknown outcome. It looks through the names of all keys of Redis for the sets that list
// them, which takes a second for some million keys and blocks nobody.
func (s *Store) EachUnknown(ctx context.Context, found func(idemkey.UnknownOutcome) error) error {
	report := func(r *openRecord) error {
		return found(idemkey.UnknownOutcome{ID: r.id, Attempt: r.Attempt, Since: time.Now().Add(-r.Age), Token: r.token, FPAlg: r.FP.Alg})
	}
	scan := func(ctx context.Context, node redis.UniversalClient) error {
		names := node.Scan(ctx, 0, s.opts.Prefix+openRunsInfix+"*", scanCount).Iterator()
		for names.Next(ctx) {
			if err := s.eachOpenRun(ctx, names.Val(), report); err != nil {
				return err
			}
		}
		return names.Err()
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

// Settle ends the unknown outcome u.
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
	s.openRunOf(u.ID).remove(ctx, s)
	return nil
}

// scriptSettle ends the unknown outcome of the run with token ARGV[1]. The token becomes ARGV[8], so that an owner that has
// been cut off cannot end its run after that. Sent twice, it finds its own token.
var scriptSettle = redis.NewScript(luaLive + `
local r = redis.call('HMGET', KEYS[1], 'token', 'state', 'lease_until', 'expires_at')
if r[1] == ARGV[8] then return 1 end
if r[1] ~= ARGV[1] or r[4] ~= '` + strconv.Itoa(never) + `' then return 0 end
if not (r[2] == '5' or r[2] == '1' and tonumber(r[3]) <= now) then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'status', ARGV[3], 'token', ARGV[8])
if ARGV[2] ~= '2' then redis.call('HSET', KEYS[1], 'header', ARGV[4]) end
if ARGV[2] == '3' then redis.call('HSET', KEYS[1], 'body', ARGV[5], 'key_id', ARGV[6]) end
live(tonumber(ARGV[7]), 0)
return 1
`)
