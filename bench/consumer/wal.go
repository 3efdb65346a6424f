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

// logs compares what a message adds to the write-ahead log. That depends on no
// clock, so one slice is enough.
func (b *bench) logs(ctx context.Context) ([]target.Target, error) {
	bytes := map[string]float64{}
	for _, k := range kinds[1:] {
		sub, err := b.newSubject(ctx, b.servers[0], k.name, "wal")
		if err != nil {
			return nil, err
		}
		o, err := sub.drain(ctx, walMessages, true)
		sub.close()
		if err != nil {
			return nil, err
		}
		bytes[k.name] = o.bytes()
		fmt.Printf("wal %-11s %5.0f bytes for each message, %.2f of %s\n", k.name, o.bytes(), o.bytes()/bytes[kindPlain1], kindPlain1)
	}
	queued, built := bytes[kindQueued]
	if !built {
		return nil, nil
	}
	return []target.Target{{Name: "consumer-wal", Value: queued / bytes[kindPlain8], Goal: walGoal, AtMost: true}}, nil
}
