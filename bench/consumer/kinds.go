package main

import "github.com/sagamill/sagamill/consumer"

// The kinds, in the order of a round: what is held against each other is measured
// one right after the other.
const (
	kindRaw    = "raw"
	kindPlain1 = "plain-1"
	kindPlain8 = "plain-8"
	kindSingle = "ours-single"
	kindBatch  = "ours-batch"
	kindQueued = "ours-queued"
)

// The best of 1, 4, 16, 64 and 256. A subscription has one message in hand, and the
// next is there when that is acked. With 1 that takes a round trip to the broker;
// with hundreds the last of a backlog are unevenly spread over eight.
const plain1Prefetch, plain8Prefetch = 64, 16

// batchedSetup has twice the default in hand, so that each of the lanes that may have a
// batch finds a full one.
func batchedSetup(handler func(*progress) consumer.Handler[order]) setup {
	return setup{prefetch: 512, handler: handler}
}

var kinds = []kind{
	{kindRaw, openRawWay},
	{kindPlain1, openPlain(1, plain1Prefetch)},
	{kindPlain8, openPlain(8, plain8Prefetch)},
	{kindSingle, openOurWay(setup{options: consumer.Options{BatchSize: 1}, handler: insertAndEmit})},
	{kindBatch, openOurWay(batchedSetup(insertAndEmit))},
	{kindQueued, openOurWay(batchedSetup(queueAndEmit))},
}

func kindNames() []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	return names
}
