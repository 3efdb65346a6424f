package main

import (
	"log/slog"
	"testing"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/tools/devservices"
)

// A service that runs for long removes what is old, of its inbox too.
func TestEveryInboxIsSwept(t *testing.T) {
	t.Parallel()
	s := &settings{databaseURL: database(t), amqpURL: devservices.InProcess}
	b, err := openBroker(s.amqpURL, defaultNamespace, false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, name := range serviceNames {
		n, err := openNode(t.Context(), name, s, "http://127.0.0.1:1", b, watchers{}, slog.New(slog.DiscardHandler))
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
		if want := min(len(listens[name]), 1); inboxes != want {
			t.Errorf("service %s has %d sweepers of its inbox, want %d", name, inboxes, want)
		}
	}
}
