package main

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/plaintext"
	"github.com/sagamill/sagamill/internal/testing/permissiontest"
)

// The file that an operator gives to sagamill broker says what the programs do.
func TestTopologyFile(t *testing.T) {
	t.Parallel()
	permissiontest.CheckFile(t, "topology.json", topology(defaultNamespace))
}

// TestBrokerPermissions has a broker with a user for the orchestrator and one for each
// participant: trips are made and given back, and nobody can send or read what is another's.
func TestBrokerPermissions(t *testing.T) {
	t.Parallel()
	b := permissiontest.New(t, topology(defaultNamespace))
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
	for _, name := range serviceNames {
		s := &settings{
			services: []string{name}, listen: "127.0.0.1:0", startTimeout: time.Minute, patience: 10 * time.Second, namespace: defaultNamespace,
			databaseURL: site.databaseURL, amqpURL: b.URLOf(name), restricted: true,
		}
		var err error
		s.allowPlaintext, err = plaintext.Allowed()
		if err := errors.Join(err, s.check()); err != nil {
			t.Fatal(err)
		}
		site.urls[name] = startApp(t, s)
	}
	f := &fleet{urls: site.urls}
	for _, name := range serviceNames {
		if err := f.awaitReady(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	site.url = site.urls["trip"]
	return site
}
