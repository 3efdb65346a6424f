package main

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

var kinds = []kind{
	{kindRaw, openRaw},
	{kindPlain1, openPlain(1)},
	{kindPlain8, openPlain(8)},
	{kindSingle, openOurs(setup{handler: insertAndEmit})},
}

const latencyKind = kindSingle
