package outbox

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A Desk does what package operator does with the outbox of a schema. Package operator imports
// this one, so that tests in package outbox reach it through OpenDesk. The types below have the
// fields of its types that these tests use.
type Desk interface {
	List(ctx context.Context, f DeadFilter, after int64, limit int) ([]DeadLetter, error)
	Get(ctx context.Context, id int64) (DeadLetter, error)
	Count(ctx context.Context, f DeadFilter) (int, error)
	Redrive(ctx context.Context, f DeadFilter) (int, error)
	Discard(ctx context.Context, f DeadFilter) (int, error)
	Bury(ctx context.Context, ids ...int64) (int, error)

	Pin(ctx context.Context, tx pgx.Tx) error
	Locate(ctx context.Context, tx pgx.Tx, f LocateFilter) (FoundMessages, error)

	ListLogged(ctx context.Context, tx pgx.Tx, f ReplayFilter) ([]LoggedMessage, error)
	Replay(ctx context.Context, tx pgx.Tx, f ReplayFilter) ([]LoggedMessage, error)
	ReplayRange(ctx context.Context, f ReplayFilter, opts *RangeOptions) (RangeProgress, error)
	Oldest(ctx context.Context) (time.Time, error)
}

type DeadFilter struct {
	IDs                                 []int64
	State                               string
	MessageID, Topic, Scope, Key, Error string
	Older                               time.Duration
}

type DeadLetter struct {
	ID        int64
	MessageID string

	Topic, Type, Scope, Key, Step, N, OrderingKey string
	CorrelationID, CausationID, ContentType       string

	HeadersJSON            json.RawMessage
	Payload                []byte
	Size, Attempts         int
	Error                  string
	FirstAt, LastAt, DueAt time.Time
}

type LocateFilter struct {
	Scope, Key  string
	Unpublished bool
}

type FoundMessages struct {
	Messages []FoundMessage
	More     bool
	Holder   string
	At       time.Time
}

type FoundMessage struct {
	ID        int64
	MessageID string
	Place     string

	Topic, Type, Scope, Key, Step, N, OrderingKey string
	CorrelationID, CausationID                    string
	Size, Attempts                                int
	Reason                                        string
	CreatedAt, DueAt, RefusedAt                   time.Time
	Behind                                        *Blocker
}

type Blocker struct {
	ID                         int64
	Topic, Scope, Key, Step, N string
	Attempts                   int
	Reason                     string
	RetryAt                    time.Time
}

type ReplayFilter struct {
	Scope, Key   string
	Since, Until time.Time
	After        int64
}

type LoggedMessage struct {
	ID                               int64
	MessageID                        string
	Topic, Type, Scope, Key, Step, N string
	Size                             int
	CreatedAt                        time.Time
}

type RangeOptions struct {
	Rate     float64
	DryRun   bool
	Progress func(RangeProgress) error
}

type RangeProgress struct {
	Batch           []LoggedMessage
	Replayed, Found int
	Last            int64
}

// These are set by package outbox_test.
var (
	OpenDesk func(db *pgxpool.Pool, schema string) (Desk, error)

	ErrNoDeadLetter, ErrNotKept, ErrMoved, ErrDeskInvalid error
	MaxList, MaxReplay                                    int
)

// The sizes of a batch of letters, and of one of a replay.
const (
	letterBatch = 500
	replayBatch = 1000
)

// letters opens the outbox of f's schema for an operator.
func (f *fixture) letters(t *testing.T) Desk {
	t.Helper()
	d, err := OpenDesk(f.pool, f.schema)
	if err != nil {
		t.Fatalf("OpenDesk: %v", err)
	}
	return d
}

// retrying picks messages that the relay retries.
var retrying = DeadFilter{State: "retrying"}
