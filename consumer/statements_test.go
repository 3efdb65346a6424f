package consumer

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// What this package sends to the tables is recorded, so that the next migration is
// tested with it.
func TestStatementsAreRecorded(t *testing.T) {
	t.Parallel()
	const schema = "{schema}"
	pgtest.Record(t, "consumer", newQueries(schema), newEffectQueries(schema), newRetentionQueries(schema))
}

// sentSQL is a tracer that keeps the first two words of each statement.
type sentSQL struct {
	mu    sync.Mutex
	heads []string
}

func (s *sentSQL) note(sql string) {
	words := strings.Fields(sql)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heads = append(s.heads, strings.Join(words[:min(2, len(words))], " "))
}

func (s *sentSQL) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.note(data.SQL)
	return ctx
}

func (*sentSQL) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (*sentSQL) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s *sentSQL) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	s.note(data.SQL)
}

func (*sentSQL) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// A step alone costs four statements before its handler, and COMMIT. Only if the handler has used the transaction,
// COMMIT asks whether it is still the same one. An Effect's transaction before the call has no savepoint.
func TestStatementsOfAStepAlone(t *testing.T) {
	t.Parallel()
	claim := []string{"begin isolation", "INSERT INTO", "SELECT nullif(h.swept_before,"}
	step := append(slices.Clip(claim), "SAVEPOINT sagamill_step")
	f := newFixture(t)
	provider := newProvider(t, true)
	for name, tt := range map[string]struct {
		step Step
		want []string
	}{
		"nothing": {f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error { return nil }, nil), append(slices.Clip(step), "commit")},
		"queued": {f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
			in.Queue("SELECT 'queued'")
			return nil
		}, nil), append(slices.Clip(step), "SELECT 'queued'", "commit")},
		"direct": {f.step(func(ctx context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
			_, err := tx.Exec(ctx, "SELECT 'direct'")
			return err
		}, nil), append(slices.Clip(step), "SELECT 'direct'", "RELEASE SAVEPOINT", "commit")},
		"bare connection": {f.step(func(_ context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
			_ = tx.Conn()
			return nil
		}, nil), append(slices.Clip(step), "RELEASE SAVEPOINT", "commit")},
		"effect": {f.effectStep(provider.url, false), append(slices.Clip(claim), "INSERT INTO", "UPDATE "+f.schema+".inbox", "commit")},
	} {
		t.Run(name, func(t *testing.T) {
			sent := &sentSQL{}
			config := f.pool.Config()
			config.ConnConfig.Tracer = sent
			own := *f
			own.consumersPool(t, config)
			c := own.consumer(t, Options{}, tt.step)
			handle(t, c, act(name))
			got := sent.heads[:min(len(tt.want), len(sent.heads))]
			if name != "effect" { // whose call follows
				got = sent.heads
			}
			if diff := gocmp.Diff(tt.want, got); diff != "" {
				t.Errorf("statements, -want +got:\n%s", diff)
			}
		})
	}
}
