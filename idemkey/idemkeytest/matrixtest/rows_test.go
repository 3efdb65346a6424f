//go:build failpoints

package matrixtest

import "github.com/sagamill/sagamill/internal/testing/pgtest"

// busy is what a retry gets while the first request counts as running.
const busy = "409 in-progress"

// Why a column has no such point.
const (
	noTx       = "it has no transaction"
	noTrace    = "the middleware refuses it: a dead owner leaves no trace"
	noPostgres = "it does not need Postgres"
	noRedis    = "it does not need Redis"
)

// deaths are what kills the process besides the failpoints, which TestEveryFailpoint
// has. On a store without transactions the effect of a dead handler stands, and its
// retry adds another.
var deaths = []row{
	{point: "killed while it reads the body", fault: killedReading, want: map[string]outcome{
		inline:  {broken, 0, absent, "", "201", 1, 1},
		pg:      {broken, 0, absent, "", "201", 1, 1},
		onRedis: {broken, 0, absent, "", "201", 1, 1},
		hybrid:  {broken, 0, absent, "", "201", 1, 1},
		memory:  {broken, 0, "", "", "201", 1, 1},
	}},
	{point: "killed in the handler", fault: killedAt("test/in-handler"), want: map[string]outcome{
		inline:  {broken, 0, absent, "", "201", 2, 1},
		pg:      {broken, 0, inProgress, busy, "201", 2, 1},
		onRedis: {broken, 1, inProgress, busy, "201", 2, 2},
		hybrid:  {broken, 0, inProgress, busy, "201", 2, 1},
		memory:  {broken, 1, "", "", "201", 2, 2},
	}},
	{point: "killed in the handler, with external effects", set: external, fault: killedAt("test/in-handler"), want: map[string]outcome{
		pg:      {broken, 0, inProgress, busy, "409 outcome-unknown", 1, 0},
		onRedis: {broken, 1, inProgress, busy, "409 outcome-unknown", 1, 1},
		hybrid:  {broken, 0, inProgress, busy, "409 outcome-unknown", 1, 0},
		memory:  {broken, 1, "", "", "201", 2, 2},
	}, none: map[string]string{inline: noTrace}},
	{point: "killed while Postgres runs a statement", fault: killedInQuery, want: map[string]outcome{
		inline: {broken, 0, absent, "", "201", 2, 1},
		pg:     {broken, 0, inProgress, busy, "201", 2, 1},
		hybrid: {broken, 0, inProgress, busy, "201", 2, 1},
	}, none: map[string]string{onRedis: noTx, memory: noTx}},
	{point: "killed after the response", fault: killedAnswered, want: map[string]outcome{
		inline:  {"201", 1, completed, "", "201 replay", 1, 1},
		pg:      {"201", 1, completed, "", "201 replay", 1, 1},
		onRedis: {"201", 1, completed, "", "201 replay", 1, 1},
		hybrid:  {"201", 1, completed, "", "201 replay", 1, 1},
		memory:  {"201", 1, "", "", "201", 2, 2},
	}},
}

// stalls are owners that hang for longer than their lease, with a retry at
// that time: soon is what it gets.
var stalls = []row{
	{point: "stalled in the handler", set: shortGrace, fault: stalledInHandler, want: map[string]outcome{
		inline:  {"201", 1, completed, busy, "201 replay", 1, 1},
		pg:      {"201", 1, completed, busy, "201 replay", 1, 1},
		onRedis: {"201", 2, completed, "201", "201 replay", 2, 2},
		hybrid:  {"201", 1, completed, busy, "201 replay", 1, 1},
		memory:  {"201", 2, "", "201", "201 replay", 2, 2},
	}},
}

// outages are stores that cannot be reached, for the first process alone.
var outages = []row{
	{point: "Postgres down at the claim", fault: downAtBegin((*cell).linkPostgres), want: map[string]outcome{
		inline: {"503 store-unavailable", 0, absent, "", "201", 1, 1},
		pg:     {"503 store-unavailable", 0, absent, "", "201", 1, 1},
		hybrid: {"503 store-unavailable", 0, absent, "", "201", 1, 1},
	}, none: map[string]string{onRedis: noPostgres, memory: noPostgres}},
	{point: "Redis down at the claim", fault: downAtBegin((*cell).linkRedis), want: map[string]outcome{
		onRedis: {"503 store-unavailable", 0, absent, "", "201", 1, 1},
		hybrid:  {"201", 1, completed, "", "201 replay", 1, 1},
	}, none: map[string]string{inline: noRedis, pg: noRedis, memory: noRedis}},
	{point: "Redis down at the claim, fail open", set: func(s *settings) { s.FailOpen = true }, fault: downAtBegin((*cell).linkRedis), want: map[string]outcome{
		onRedis: {"201", 1, absent, "", "201", 2, 2},
	}, none: map[string]string{inline: noRedis, pg: noRedis, hybrid: "Postgres decides without asking", memory: noRedis}},
	{point: "Postgres lost in the handler", fault: downInHandler((*cell).linkPostgres), want: map[string]outcome{
		inline: {"503 outcome-unverified", 0, absent, "", "201", 2, 1},
		pg:     {"503 outcome-unverified", 0, inProgress, busy, "201", 2, 1},
		hybrid: {"503 outcome-unverified", 0, inProgress, busy, "201", 2, 1},
	}, none: map[string]string{onRedis: noPostgres, memory: noPostgres}},
	{point: "Redis lost in the handler", fault: downInHandler((*cell).linkRedis), want: map[string]outcome{
		onRedis: {"201", 1, inProgress, busy, "201", 2, 2},
		hybrid:  {"201", 1, completed, "", "201 replay", 1, 1},
	}, none: map[string]string{inline: noRedis, pg: noRedis, memory: noRedis}},
	{point: "Redis lost in the handler, with external effects", set: external, fault: downInHandler((*cell).linkRedis), want: map[string]outcome{
		onRedis: {"201", 1, inProgress, busy, "409 outcome-unknown", 1, 1},
		hybrid:  {"201", 1, completed, "", "201 replay", 1, 1},
	}, none: map[string]string{inline: noRedis, pg: noRedis, memory: noRedis}},
	{point: "reply to COMMIT lost", fault: losesCommit(pgtest.LoseReply), want: map[string]outcome{
		inline: {"201", 1, completed, "", "201 replay", 1, 1},
		pg:     {"201", 1, completed, "", "201 replay", 1, 1},
		hybrid: {"201", 1, completed, "", "201 replay", 1, 1},
	}, none: map[string]string{onRedis: noTx, memory: noTx}},
	{point: "reply to COMMIT lost, and every look-up", fault: losesCommit(pgtest.LoseAll), want: map[string]outcome{
		inline: {"503 outcome-unverified", 1, completed, "", "201 replay", 1, 1},
		pg:     {"503 outcome-unverified", 1, completed, "", "201 replay", 1, 1},
		hybrid: {"503 outcome-unverified", 1, completed, "", "201 replay", 1, 1},
	}, none: map[string]string{onRedis: noTx, memory: noTx}},
	{point: "COMMIT lost", fault: losesCommit(pgtest.LoseCommit), want: map[string]outcome{
		inline: {"500 commit-failed", 0, absent, "", "201", 2, 1},
		pg:     {"500 commit-failed", 0, "failed", "", "201", 2, 1},
		hybrid: {"500 commit-failed", 0, "failed", "", "201", 2, 1},
	}, none: map[string]string{onRedis: noTx, memory: noTx}},
	{point: "reply to the save lost", fault: losesSave, want: map[string]outcome{
		onRedis: {"201", 1, completed, "", "201 replay", 1, 1},
	}, none: map[string]string{inline: noRedis, pg: noRedis, hybrid: "its responses are in Postgres", memory: noRedis}},
	{point: "Redis forgets in the handler", fault: forgottenInHandler, want: map[string]outcome{
		onRedis: {"201", 2, completed, "201", "201 replay", 2, 2},
		hybrid:  {"201", 1, completed, busy, "201 replay", 1, 1},
	}, none: map[string]string{inline: noRedis, pg: noRedis, memory: noRedis}},
	{point: "Redis forgets the response", fault: forgottenAfter, want: map[string]outcome{
		onRedis: {"201", 1, absent, "", "201", 2, 2},
	}, none: map[string]string{inline: noRedis, pg: noRedis, hybrid: "its responses are in Postgres", memory: noRedis}},
}

// endings are those that nothing is broken in.
var endings = []row{
	{point: "client gone", fault: disconnects, want: map[string]outcome{
		inline:  {broken, 1, completed, "", "201 replay", 1, 1},
		pg:      {broken, 1, completed, "", "201 replay", 1, 1},
		onRedis: {broken, 1, completed, "", "201 replay", 1, 1},
		hybrid:  {broken, 1, completed, "", "201 replay", 1, 1},
		memory:  {broken, 1, "", "", "201 replay", 1, 1},
	}},
	{point: "handler panics", fault: panics, want: map[string]outcome{
		inline:  {"500", 0, absent, "", "201", 2, 1},
		pg:      {"500", 0, "failed", "", "201", 2, 1},
		onRedis: {"500", 1, "failed", "", "201", 2, 2},
		hybrid:  {"500", 0, "failed", "", "201", 2, 1},
		memory:  {"500", 1, "", "", "201", 2, 2},
	}},
	{point: "expired", set: shortLife, fault: expires, want: map[string]outcome{
		inline:  {"201", 1, completed, "", "201", 2, 2},
		pg:      {"201", 1, completed, "", "201", 2, 2},
		onRedis: {"201", 1, completed, "", "201", 2, 2},
		hybrid:  {"201", 1, completed, "", "201", 2, 2},
		memory:  {"201", 1, "", "", "201", 2, 2},
	}},
	{point: "expired, and refused", set: func(s *settings) { shortLife(s); s.RejectExpired = true }, fault: expires, want: map[string]outcome{
		inline:  {"201", 1, completed, "", "410 key-expired", 1, 1},
		pg:      {"201", 1, completed, "", "410 key-expired", 1, 1},
		onRedis: {"201", 1, completed, "", "410 key-expired", 1, 1},
		hybrid:  {"201", 1, completed, "", "410 key-expired", 1, 1},
		memory:  {"201", 1, "", "", "410 key-expired", 1, 1},
	}},
}
