package main

import "github.com/sagamill/sagamill/consumer"

// The kinds, in the order of a round: kinds that are compared follow each other.
const (
	kindRaw    = "raw"
	kindPlain1 = "plain-1"
	kindPlain8 = "plain-8"
	kindSingle = "ours-single"
	kindServed = "ours-service"
	kindBatch  = "ours-batch"
	kindQueued = "ours-queued"
)

// The best prefetch of 1, 4, 16, 64 and 256. A subscription hands out one message at a time and needs the next
// one right after the ack. With a prefetch of 1 the next one takes a round trip to the broker. With hundreds
// the last messages of a backlog are unevenly spread over eight subscriptions.
const plain1Prefetch, plain8Prefetch = 64, 16

// batchedSetup has twice the default prefetch, so that each lane finds enough messages for a full batch.
func batchedSetup(handler func(*progress) consumer.Handler[order]) setup {
	return setup{prefetch: 512, handler: handler}
}

var kinds = []kind{
	{kindRaw, openRawWay},
	{kindPlain1, openPlain(1, plain1Prefetch)},
	{kindPlain8, openPlain(8, plain8Prefetch)},
	{kindSingle, openOurWay(setup{options: consumer.Options{BatchSize: 1}, handler: insertAndEmit})},
	{kindServed, openService(batchedSetup(insertAndEmit))},
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
