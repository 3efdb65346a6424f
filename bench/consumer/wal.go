package main

import (
	"context"
	"fmt"

	"github.com/sagamill/sagamill/bench/internal/target"
)

const (
	walMessages = 4000 // the same for all: tables of one size
	walGoal     = 0.75
)

// measureLogged compares how many bytes a message adds to the write-ahead log. Bytes depend on no clock, so one
// slice is enough.
func (b *bench) measureLogged(ctx context.Context) ([]target.Target, error) {
	bytes := map[string]float64{}
	for _, k := range kinds[1:] {
		sub, err := b.newSubject(ctx, b.servers[0], k.name, "wal")
		if err != nil {
			return nil, err
		}
		o, err := sub.drainQueue(ctx, walMessages, true)
		sub.closePool()
		if err != nil {
			return nil, err
		}
		bytes[k.name] = o.bytesEach()
		fmt.Printf("wal %-11s %5.0f bytes for each message, %.2f of %s\n", k.name, o.bytesEach(), o.bytesEach()/bytes[kindPlain1], kindPlain1)
	}
	queued, built := bytes[kindQueued]
	if !built {
		return nil, nil
	}
	return []target.Target{{Name: "consumer-wal", Value: queued / bytes[kindPlain8], Goal: walGoal, AtMost: true}}, nil
}
