package matrixtest

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
)

// The clock of the host may jump: no statement and no script is sent a time,
// only lengths of time, whatever becomes of a request.
func TestNoHostTime(t *testing.T) {
	t.Parallel()
	base := newSettings(t)
	for _, name := range []string{pg, onRedis, hybrid} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := &arguments{}
			c := base.of(t, columnOf(name))
			c.watch = sent
			x := newLife(t, c, func(o *idemkey.Options) { o.Limits.MaxAttempts = 9 })
			x.post("order", "500").expect("500")
			x.post("order", "").expect("201")
			x.post("order", "").expect("201 replay")
			x.expire()
			x.post("order", "404").expect("404")
			x.key += "-2"
			first := x.running()
			x.post("order", "").expect("409 in-progress")
			x.let(first).expect("201")
			if _, err := x.store.Sweep(t.Context(), 10); err != nil {
				t.Error(err)
			}
			sent.check(t)
		})
	}
}

// arguments are what a store has sent.
type arguments struct {
	mu   sync.Mutex
	n    int
	time []string // of them, what is a point in time
}

// aPoint is what no length of time in this package comes near to, in
// milliseconds, and every point in time exceeds, in seconds since 1970.
const aPoint = 1_000_000_000

func (a *arguments) add(args []any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, arg := range args {
		a.n++
		switch v := reflect.ValueOf(arg); arg.(type) {
		case time.Time, *time.Time, pgtype.Timestamptz, pgtype.Timestamp:
			a.time = append(a.time, fmt.Sprint(arg))
		default:
			if v.CanInt() && v.Int() >= aPoint || v.CanFloat() && v.Float() >= aPoint {
				a.time = append(a.time, fmt.Sprint(arg))
			}
		}
	}
}

func (a *arguments) check(t *testing.T) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.n == 0 || len(a.time) > 0 {
		t.Errorf("of %d arguments, these are times: %q; want none", a.n, a.time)
	}
}

// TraceQueryStart and the other methods are those of pgx's tracers.
func (a *arguments) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	a.add(q.Args)
	return ctx
}

func (a *arguments) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (a *arguments) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for _, q := range b.Batch.QueuedQueries {
		a.add(q.Arguments)
	}
	return ctx
}

func (a *arguments) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (a *arguments) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// DialHook and the other methods are those of a Redis hook.
func (a *arguments) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *arguments) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		a.add(cmd.Args())
		return next(ctx, cmd)
	}
}

func (a *arguments) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
