package main

import (
	"context"
	"fmt"
	"slices"
)

// The kinds, in the order of a round.
const (
	kindDBOS            = "dbos"
	kindDBOSTransaction = "dbos-transaction"
	kindRiver           = "river"
	kindPlain           = "plain"
	kindGood            = "good-hand"
	kindChoreo          = "choreographed"
	kindQueued          = "choreographed-queued"
	kindOrchest         = "orchestrated"
	kindOrchestQueued   = "orchestrated-queued"
)

// A kind is a way to compare, with the number of sagas in flight that suits it best. The option -sweep finds that
// number.
type kind struct {
	name     string
	inFlight int
	open     func(ctx context.Context, p *place) (way, error)
}

var kinds = []kind{
	{kindDBOS, 4096, openDurable(byStep)},
	{kindDBOSTransaction, 2048, openDurable(byTransaction)},
	{kindRiver, 4096, openChained},
	{kindPlain, 4096, openPlain(plainSubscriptions, plainPrefetch)},
	{kindGood, 4096, openGood},
	{kindChoreo, 2048, openChoreographed(insertNow)},
	{kindQueued, 2048, openChoreographed(insertQueued)},
	{kindOrchest, 2048, openOrchestrated(insertNow)},
	{kindOrchestQueued, 2048, openOrchestrated(insertQueued)},
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
