package operator

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/keysql"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// The errors of [Keys]. After each of them nothing has changed.
var (
	// ErrNoKeyTable reports a schema without idempotency keys.
	ErrNoKeyTable = errors.New("operator: the schema has no idempotency keys; those in Redis are decided by an idemkey.Reconciler, or by a program that calls idemredis.Store.Settle")

	// ErrNoKey reports that no record has this key, or that no open one has this digest.
	ErrNoKey = errors.New("operator: there is no such key; a digest finds only keys whose outcome is unknown or that run, so name any other by the key itself")

	// ErrKeyDecided reports a record whose outcome is not unknown, or not any more.
	ErrKeyDecided = errors.New("operator: nothing was changed, because the outcome of this key is not unknown")

	// ErrOwnerLives reports a record whose request still runs.
	ErrOwnerLives = errors.New("operator: nothing was changed, because the request of this key still runs")

	// ErrNoJournal reports a schema without the table operator_journal, which records each decision about a key.
	ErrNoJournal = errors.New("operator: nothing was changed, because the schema has no journal: sagamill migrate up -schema SCHEMA -only outbox adds one")
)

// DefaultKeyTTL is how long a record lives by default once its outcome is known.
const DefaultKeyTTL = idemkey.DefaultTTL

// MaxKeyAnswer is the largest body that [Keys.Complete] stores.
const MaxKeyAnswer = idemkey.DefaultHardResponseLimit

// A KeyRecord is the record of an idempotency key for which a decision may be awaited, without the request and the
// response.
type KeyRecord struct {
	Namespace, Scope, Key string
	Digest                string // names the record without showing the key, as the log of the service does
	State                 RequestState
	Attempt               int       // the run whose outcome is unknown
	Token                 string    // names the run that a decision is about
	Since                 time.Time // when the key was claimed first
	LeaseUntil            time.Time
	At                    time.Time // the moment, by the clock of the database

	endless bool // it does not expire: its handler has effects outside of the database
}

// Refusal returns why a decision about k would be refused at its moment: an [ErrKeyDecided] or an [ErrOwnerLives], or
// nil. The owner of a run may also live after its lease, which only [Keys.Complete] and [Keys.Release] find out.
func (k *KeyRecord) Refusal() error {
	switch {
	case k.State == RequestUnknown && k.endless:
		return nil
	case k.State == RequestInProgress && k.LeaseUntil.After(k.At):
		return fmt.Errorf("%w: its lease lasts until %s", ErrOwnerLives, k.LeaseUntil.UTC().Format(time.RFC3339))
	case k.State == RequestInProgress && k.endless:
		return nil
	case k.State == RequestInProgress:
		return fmt.Errorf("%w: its handler has no external effects, so a retry runs it again", ErrKeyDecided)
	case k.State == RequestFailed:
		return fmt.Errorf("%w: the next retry runs it again", ErrKeyDecided)
	}
	return fmt.Errorf("%w: its state is %s", ErrKeyDecided, k.State)
}

// A KeyFilter picks unknown outcomes. One matches if it matches every field that is not empty.
type KeyFilter struct{ Namespace, Scope string }

// A KeyRef names the record of a key: by its Digest or, if that is empty, by its Key, with the Namespace and the Scope
// where several have this key.
type KeyRef struct {
	Digest                string
	Namespace, Scope, Key string
}

// A KeyAnswer is what [Keys.Complete] stores for the retries of a request.
type KeyAnswer struct {
	Status      int // 200 to 999
	ContentType string
	Body        []byte
}

// An AmbiguousKeyError reports that a key has records in several namespaces or scopes.
type AmbiguousKeyError struct{ Digests []string }

// Error lists their digests.
func (e *AmbiguousKeyError) Error() string {
	return "operator: the key has several records; name one by its digest: " + strings.Join(e.Digests, ", ")
}

// Keys lists the requests whose outcome is unknown, in the idempotency keys of a schema, and applies decisions about
// them. Any number of goroutines may use it.
type Keys struct {
	engine
	sql keyQueries
}

// NewKeys returns the Keys of a schema. It does no I/O. Its errors name a schema that is not a plain identifier, or a
// missing pool. To decide, [Options].Why is required.
func NewKeys(db *pgxpool.Pool, opts *Options) (*Keys, error) {
	o, err := opts.withDefaults()
	switch {
	case err != nil:
		return nil, err
	case db == nil:
		return nil, errors.New("operator: NewKeys needs a pool")
	}
	sql, nothing := newKeyQueries(o.Schema), func() error { return nil }
	return &Keys{sql: sql, engine: engine{
		db: pg.NewOwn(db), by: o.By, why: o.Why, begin: sqlBeginDecision, beginRead: o.beginLimitedRead(), insertJournal: sql.insertJournal, pause: backoff.Sleep,
		beforeCommit: nothing, afterCommit: nothing,
	}}, nil
}

// List returns the unknown outcomes that filter picks, in the order of namespace, scope and key: those behind after, at
// most limit and at most [MaxList]. For the first page, after is the zero KeyRecord; for each further one, the last
// record of the page before. List takes no lock. It may also list a run whose owner lives and has not renewed its
// lease.
func (k *Keys) List(ctx context.Context, filter KeyFilter, after KeyRecord, limit int) (all []KeyRecord, err error) {
	all, err = k.readKeys(ctx, k.sql.list, after.Namespace, after.Scope, after.Key, filter.Namespace, filter.Scope, min(limit, MaxList))
	return all, wrapKeyError("list keys", err)
}

// Find returns the record that ref names. A digest is looked for among the records that do not expire: unknown
// outcomes, and running requests that may become one. A key is found in every state. Its errors are [ErrNoKey], and an
// [AmbiguousKeyError].
func (k *Keys) Find(ctx context.Context, ref KeyRef) (KeyRecord, error) {
	var found []KeyRecord
	var err error
	switch {
	case ref.Digest != "":
		found, err = k.findDigest(ctx, ref.Digest)
	case ref.Key != "":
		found, err = k.readKeys(ctx, k.sql.find, ref.Namespace, ref.Scope, ref.Key, maxAddresses)
	default:
		err = fmt.Errorf("%w: a digest or a key is needed", ErrInvalid)
	}
	switch {
	case err != nil:
		return KeyRecord{}, wrapKeyError("find key", err)
	case len(found) == 0:
		return KeyRecord{}, ErrNoKey
	case len(found) > 1:
		several := &AmbiguousKeyError{}
		for i := range found {
			several.Digests = append(several.Digests, found[i].Digest)
		}
		return KeyRecord{}, several
	}
	return found[0], nil
}

// findDigest computes the digest of each open record, up to the one it looks for. PostgreSQL has no index of digests.
func (k *Keys) findDigest(ctx context.Context, digest string) ([]KeyRecord, error) {
	if _, err := hex.DecodeString(digest); err != nil || len(digest) != len(idemkey.Identity{}.Digest()) {
		return nil, fmt.Errorf("%w: %.40q is no digest of a key, which has 12 hexadecimal digits", ErrInvalid, digest)
	}
	var after KeyRecord
	for {
		page, err := k.readKeys(ctx, k.sql.listOpen, after.Namespace, after.Scope, after.Key, MaxList)
		if err != nil {
			return nil, err
		}
		for i := range page {
			if strings.EqualFold(page[i].Digest, digest) {
				return page[i : i+1], nil
			}
		}
		if len(page) < MaxList {
			return nil, nil
		}
		after = page[len(page)-1]
	}
}

func (k *Keys) readKeys(ctx context.Context, statement string, args ...any) (all []KeyRecord, err error) {
	err = k.readLimited(ctx, func(db querier) error {
		rows, _ := db.Query(ctx, statement, append([]any{plannedAnew}, args...)...)
		all, err = pgx.CollectRows(rows, scanKey)
		return err
	})
	return all, explainKeys(err)
}

// explainKeys returns err, which says that a table is missing, as an [ErrNoKeyTable].
func explainKeys(err error) error {
	if sqlschema.Missing(err) {
		return fmt.Errorf("%w: %w", ErrNoKeyTable, err)
	}
	return sqlschema.Explain(err)
}

func scanKey(row pgx.CollectableRow) (k KeyRecord, err error) {
	err = row.Scan(&k.Namespace, &k.Scope, &k.Key, &k.State, &k.Attempt, &k.Token, &k.Since, &k.LeaseUntil, &k.endless, &k.At)
	k.Digest = idemkey.Identity{Namespace: k.Namespace, Scope: k.Scope, Key: k.Key}.Digest()
	return k, err
}

// Complete stores a as the answer to the retries of shown's request, for ttl; 0 means [DefaultKeyTTL]. One transaction
// changes the record and writes the journal. If two callers race, one of them decides. The body is stored as it is,
// even if the service seals its responses.
//
// The errors are [ErrInvalid], [ErrOwnerLives], [ErrNoJournal], and [ErrKeyDecided] if the outcome of the run that was
// shown is known, or if another run has begun. After them nothing has changed. After an error of COMMIT that does not
// come from the server it is unknown whether the record has changed; a repeated call returns ErrKeyDecided if it has.
func (k *Keys) Complete(ctx context.Context, shown KeyRecord, a KeyAnswer, ttl time.Duration) error {
	if err := a.Check(); err != nil {
		return err
	}
	r := &idemkey.Response{Status: a.Status, Header: http.Header{}, Body: a.Body}
	if r.Body == nil {
		r.Body = []byte{}
	}
	if a.ContentType != "" {
		r.Header.Set("Content-Type", a.ContentType)
	}
	return k.settle(ctx, "keys complete", &shown, r, ttl)
}

// Check returns an [ErrInvalid] that says why [Keys.Complete] would refuse a.
func (a *KeyAnswer) Check() error {
	switch {
	case a.Status < 200 || a.Status > 999:
		return fmt.Errorf("%w: the status must be 200 to 999, and is %d", ErrInvalid, a.Status)
	case len(a.Body) > MaxKeyAnswer:
		return fmt.Errorf("%w: the body has %d bytes, more than %d", ErrInvalid, len(a.Body), MaxKeyAnswer)
	case strings.ContainsAny(a.ContentType, "\r\n\x00"):
		return fmt.Errorf("%w: the content type has a line break", ErrInvalid)
	}
	return nil
}

// Release lets shown's request run again at its next retry. Call it only if it is certain that the earlier run had no
// effect, or that another run is harmless. The record lives for ttl; 0 means [DefaultKeyTTL]. Meanwhile a different
// request with this key is refused, as always. Errors and races are those of [Keys.Complete].
func (k *Keys) Release(ctx context.Context, shown KeyRecord, ttl time.Duration) error {
	return k.settle(ctx, "keys release", &shown, nil, ttl)
}

// settle makes r the outcome of the run that was shown, and nil that it may run again.
func (k *Keys) settle(ctx context.Context, verb string, shown *KeyRecord, r *idemkey.Response, ttl time.Duration) error {
	if ttl == 0 {
		ttl = DefaultKeyTTL
	}
	switch {
	case strings.TrimSpace(k.why) == "":
		return fmt.Errorf("%w: %s needs a reason", ErrInvalid, verb)
	case ttl < idemkey.MinTTL || ttl > idemkey.MaxTTL:
		return fmt.Errorf("%w: the TTL must be %v to %v, and is %v", ErrInvalid, idemkey.MinTTL, idemkey.MaxTTL, ttl)
	}
	id := idemkey.Identity{Namespace: shown.Namespace, Scope: shown.Scope, Key: shown.Key}
	args, err := keysql.SettleArgs(idemkey.UnknownOutcome{ID: id, Token: shown.Token}, r, ttl)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	what := journal.What("digest", id.Digest(), "namespace", id.Namespace, "ttl", ttl.String())
	if r != nil {
		what["status"] = strconv.Itoa(r.Status)
	}
	err = k.commitChange(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, k.sql.settle, args...)
		switch {
		case err != nil:
			return explainKeys(err)
		case tag.RowsAffected() == 0:
			return k.explainUnchanged(ctx, tx, shown)
		}
		err = k.writeJournal(ctx, tx, verb, what, []int64{int64(shown.Attempt)})
		if sqlschema.Missing(err) {
			return ErrNoJournal
		}
		return err
	})
	return wrapKeyError(verb, err)
}

// wrapKeyError says what failed, unless err says it.
func wrapKeyError(what string, err error) error {
	for _, own := range []error{nil, ErrInvalid, ErrNoKeyTable, ErrNoKey, ErrKeyDecided, ErrOwnerLives, ErrNoJournal} {
		if errors.Is(err, own) {
			return err
		}
	}
	return fmt.Errorf("operator: %s: %w", what, err)
}

// explainUnchanged returns why keysql.Settle changed nothing.
func (k *Keys) explainUnchanged(ctx context.Context, tx pgx.Tx, shown *KeyRecord) error {
	rows, _ := tx.Query(ctx, k.sql.read, shown.Namespace, shown.Scope, shown.Key)
	is, err := pgx.CollectExactlyOneRow(rows, scanKey)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w: its record is gone", ErrKeyDecided)
	case err != nil:
		return err
	case is.Token != shown.Token && (is.State == RequestInProgress || is.State == RequestUnknown):
		return fmt.Errorf("%w: another run has begun since it was shown", ErrKeyDecided)
	}
	if err := is.Refusal(); err != nil {
		return err
	}
	return fmt.Errorf("%w: its owner has locked the record", ErrOwnerLives)
}
