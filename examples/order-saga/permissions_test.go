package main

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/sagamill/sagamill/examples/internal/demo"
	"github.com/sagamill/sagamill/internal/plaintext"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/permissiontest"
)

// The file that an operator gives to sagamill broker says what the programs do.
func TestTopologyFile(t *testing.T) {
	t.Parallel()
	permissiontest.CheckFile(t, "topology.json", program.Topology(program.Name))
}

// TestPrivateBrokerPermissions has a broker with a user for each service: all that is its own
// works, and everything else is refused.
func TestPrivateBrokerPermissions(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	of := program.Topology(program.Name)
	b := permissiontest.New(t, of)
	b.CheckForgery(t)
	b.Purge(t)
	t.Run("sagas", func(t *testing.T) { testRestrictedSagas(t, b) })
	t.Run("limits", func(t *testing.T) { b.CheckLimits(t, of.Services[1]) })
	t.Run("deletion", b.CheckDeletion)
}

// testRestrictedSagas runs each service as a user of its own, as processes of their own
// would, and sees sagas through, compensations included.
func testRestrictedSagas(t *testing.T, b *permissiontest.Broker) {
	sites <- struct{}{}
	defer func() { <-sites }()
	databaseURL := database(t)
	urls := map[string]string{}
	for _, name := range []string{"gateway", "order", "payment", "shipping"} {
		s := &settings{gatewayURL: urls["gateway"], Settings: demo.Settings{
			Program: program, Services: []string{name}, Listen: "127.0.0.1:0", StartTimeout: time.Minute, Namespace: program.Name,
			DatabaseURL: databaseURL, AMQPURL: b.URLOf(name), Restricted: true,
		}}
		var err error
		s.AllowPlaintext, err = plaintext.Allowed()
		if err := errors.Join(err, s.checkSettings()); err != nil {
			t.Fatal(err)
		}
		urls[name] = startApp(t, newApp(s, nil, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))))
	}
	f := &demo.Fleet{Program: program, URLs: urls}
	for name := range urls {
		if err := f.AwaitReady(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	checkSenders := b.Watch(t)
	s := &site{url: urls["order"], t: t, databaseURL: databaseURL}
	for i, tt := range []struct{ item, card, want string }{
		{"book", "tok_ok", "completed"}, {"unshippable", "tok_ok", "cancelled"}, {"book", "tok_declined", "cancelled"},
	} {
		id := s.place("acme", fmt.Sprint("k:", i), fmt.Sprintf(`{"item":%q,"quantity":1,"amount":4200,"currency":"EUR","card":%q}`, tt.item, tt.card))
		if got := s.end("acme", id); got.Status != tt.want {
			t.Errorf("the order of a %s with %s is %s, want %s", tt.item, tt.card, got.Status, tt.want)
		}
	}
	checkSenders()
}
