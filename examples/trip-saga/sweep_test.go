package main

import (
	"log/slog"
	"testing"
	"time"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/internal/demo"
	"github.com/sagamill/sagamill/internal/devservices"
)

// A service that runs for long removes what is old, of its inbox too.
func TestEveryInboxIsSwept(t *testing.T) {
	t.Parallel()
	s := &settings{patience: time.Second, Settings: demo.Settings{Program: program, DatabaseURL: database(t), AMQPURL: devservices.InProcess}}
	b, err := demo.OpenBroker(s.AMQPURL, program.Name, false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, name := range program.Services {
		n, err := s.OpenService(t.Context(), name, func(n *demo.Service) error {
			return buildService(t.Context(), n, s, b, slog.New(slog.DiscardHandler))
		})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		inboxes := 0
		for _, sweeper := range n.Sweepers {
			if _, ok := sweeper.(*consumer.Sweeper); ok {
				inboxes++
			}
		}
		if inboxes != 1 {
			t.Errorf("service %s has %d sweepers of its inbox, want 1", name, inboxes)
		}
	}
}
