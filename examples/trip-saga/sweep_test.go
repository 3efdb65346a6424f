package main

import (
	"log/slog"
	"testing"
	"time"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/tools/devservices"
)

// A service that runs for long removes what is old, of its inbox too.
func TestEveryInboxIsSwept(t *testing.T) {
	t.Parallel()
	s := &settings{patience: time.Second, databaseURL: database(t), amqpURL: devservices.InProcess}
	b, err := openBroker(s.amqpURL, defaultNamespace, false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, name := range serviceNames {
		n, err := openNode(t.Context(), name, s, b, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer n.close()
		inboxes := 0
		for _, sweeper := range n.sweepers {
			if _, ok := sweeper.(*consumer.Sweeper); ok {
				inboxes++
			}
		}
		if inboxes != 1 {
			t.Errorf("service %s has %d sweepers of its inbox, want 1", name, inboxes)
		}
	}
}
