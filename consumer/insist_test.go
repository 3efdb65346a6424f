package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// A thousand deliveries are the broker's limit: at first a message is given back soon, to
// whoever can decide about it, and later so seldom that an outage of hours does not use it up.
func TestHowLongADeliveryIsTried(t *testing.T) {
	t.Parallel()
	config, err := pgconn.ParseConfig(pgtest.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.Database = "there_is_no_such_database"
	_, refused := pgconn.ConnectConfig(t.Context(), config)
	away, locked := &pgconn.PgError{Code: "57P03"}, &pgconn.PgError{Code: "55P03"}
	for _, tt := range []struct {
		redelivered string
		err         error
		least, most time.Duration
	}{
		{"", away, 500 * time.Millisecond, 5 * time.Second},
		{"true", fmt.Errorf("consumer: connect: %w", away), 15 * time.Second, time.Minute},
		{"true", refused, 15 * time.Second, time.Minute},
		{"true", locked, 500 * time.Millisecond, 5 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := &Consumer{opts: Options{Logger: slog.New(slog.DiscardHandler)}}
			msg := message.NewMessage("1", nil)
			msg.Metadata.Set(outbox.PropertyRedelivered, tt.redelivered)
			began := time.Now()
			if c.insist(t.Context(), arrived{topic: "pay", msg: msg}, func() error { return tt.err }) {
				t.Error("it has succeeded")
			}
			if took := time.Since(began); took < tt.least || took > tt.most {
				t.Errorf("redelivered %q, %v: given back after %s, want between %s and %s", tt.redelivered, tt.err, took, tt.least, tt.most)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			began = time.Now()
			c.insist(ctx, arrived{topic: "pay", msg: msg}, func() error { cancel(); return tt.err })
			if took := time.Since(began); took > 0 {
				t.Errorf("redelivered %q: a stop has waited for %s", tt.redelivered, took)
			}
		})
	}
}
