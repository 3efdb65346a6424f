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

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// The broker delivers a message at most a thousand times. At first a message is given back soon, so that
// another process can decide about it; later so seldom that an outage of hours does not use up the deliveries.
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
		tries       int
	}{
		{"", away, maxTries},
		{"true", fmt.Errorf("consumer: connect: %w", away), redeliveredTries},
		{"true", refused, redeliveredTries},
		{"true", locked, maxTries},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := &executor{outage: &outageWatch{}, reporter: &reporter{log: slog.New(slog.DiscardHandler)}}
			msg := message.NewMessage("1", nil)
			msg.Metadata.Set(outbox.PropertyRedelivered, tt.redelivered)
			tries := 0
			if x.retryUntilDone(t.Context(), boardEntry{topic: "pay", msg: msg}, func() error { tries++; return tt.err }) {
				t.Error("it has succeeded")
			}
			if tries != tt.tries {
				t.Errorf("redelivered %q, %v: given back after %d tries, want %d", tt.redelivered, tt.err, tries, tt.tries)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			began := time.Now()
			x.retryUntilDone(ctx, boardEntry{topic: "pay", msg: msg}, func() error { cancel(); return tt.err })
			if took := time.Since(began); took > 0 {
				t.Errorf("redelivered %q: a stop has waited for %s", tt.redelivered, took)
			}
		})
	}
}
