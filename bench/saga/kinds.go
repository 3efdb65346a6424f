package main

import (
	"context"
	"fmt"
	"slices"
)

// The kinds, in the order of a round.
const (
	kindDBOS          = "dbos"
	kindPlain         = "plain"
	kindChoreo        = "choreographed"
	kindQueued        = "choreographed-queued"
	kindOrchest       = "orchestrated"
	kindOrchestQueued = "orchestrated-queued"
)

// A kind is a way to compare, with the number of sagas in flight that suits it best.
type kind struct {
	name     string
	inFlight int
	open     func(ctx context.Context, p *place) (way, error)
}

var kinds = []kind{
	{kindDBOS, dbosInFlight, openDurable(dbosConns)},
	{kindPlain, plainInFlight, openPlain(plainSubscriptions, plainPrefetch)},
	{kindChoreo, oursInFlight, openChoreographed(insertNow)},
	{kindQueued, oursInFlight, openChoreographed(insertQueued)},
	{kindOrchest, oursInFlight, openOrchestrated(insertNow)},
	{kindOrchestQueued, oursInFlight, openOrchestrated(insertQueued)},
}

func kindNames() []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	return names
}

// pickKinds returns the kinds of those names, in their own order.
func pickKinds(names []string) (picked []kind, err error) {
	for _, name := range names {
		if !slices.Contains(kindNames(), name) {
			return nil, fmt.Errorf("there is no kind %q", name)
		}
	}
	for _, k := range kinds {
		if slices.Contains(names, k.name) {
			picked = append(picked, k)
		}
	}
	return picked, nil
}
