package main

import (
	"errors"
	"slices"
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

// TestPrivateBrokerPermissions has a broker with a user for the orchestrator and one for each
// participant: trips are made and given back, and nobody can send or read what is another's.
func TestPrivateBrokerPermissions(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	b := permissiontest.New(t, program.Topology(program.Name))
	b.CheckForgery(t)
	b.Purge(t)
	checkSenders := b.Watch(t)
	// These take every command that there is.
	newRestrictedSite(t, b).travel(slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool {
		return !slices.Contains([]string{"good", "with a car", "hotel sold out", "car sold out", "no ticket"}, k.name)
	}))
	checkSenders()
}

// newRestrictedSite runs each service as a user of its own, as processes of their own would.
func newRestrictedSite(t *testing.T, b *permissiontest.Broker) *site {
	t.Helper()
	sites <- struct{}{}
	t.Cleanup(func() { <-sites })
	site := &site{urls: map[string]string{}, t: t, databaseURL: database(t)}
	for _, name := range program.Services {
		s := &settings{patience: 10 * time.Second, Settings: demo.Settings{
			Program: program, Services: []string{name}, Listen: "127.0.0.1:0", StartTimeout: time.Minute, Namespace: program.Name,
			DatabaseURL: site.databaseURL, AMQPURL: b.URLOf(name), Restricted: true,
		}}
		var err error
		s.AllowPlaintext, err = plaintext.Allowed()
		if err := errors.Join(err, s.checkSettings()); err != nil {
			t.Fatal(err)
		}
		site.urls[name] = startApp(t, s)
	}
	f := &demo.Fleet{Program: program, URLs: site.urls}
	for _, name := range program.Services {
		if err := f.AwaitReady(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	site.url = site.urls["trip"]
	return site
}
