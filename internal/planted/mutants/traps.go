package main

import (
	"slices"
	"strings"

	"github.com/sagamill/sagamill/internal/planted"
)

// A trap is a test that must fail while a bug is planted.
type trap struct {
	bug  string
	pkg  string // within the module
	run  string // the test, and after a slash which of its cases
	says string // the failure, in part
	why  string // it must fail
}

// test is the name of the test.
func (t *trap) test() string {
	name, _, _ := strings.Cut(t.run, "/")
	return name
}

// pattern is what picks it, and no test that has a longer name.
func (t *trap) pattern() string {
	name, cases, some := strings.Cut(t.run, "/")
	if some {
		return "^" + name + "$/" + cases
	}
	return "^" + name + "$"
}

// trapsOf returns those for b.
func trapsOf(b planted.Bug) []trap {
	return slices.DeleteFunc(slices.Clone(traps), func(t trap) bool { return t.bug != b.Name })
}

// traps are at least one for each bug, and one for each place that a bug is planted in. All
// are on real services, but for that of the state machine, which knows none.
var traps = []trap{
	{"ack-before-commit", "internal/suites/consumerstorm", "TestADeathBeforeTheCommitIsADeathBeforeTheAck", "of which nothing has come",
		"a process dies before its first commit, and the broker must have every message still"},
	{"mark-before-confirm", "outbox", "TestEveryFailpointOfTheRelay/before-publish_append/kill", "missing [",
		"a relay dies between reading a window and publishing it, and the next one must publish it"},
	{"inbox-missing", "consumer", "TestDuplicatesRunOnce", `effects "paid k 1, paid k 1`,
		"one message is delivered ten times, and must take effect once"},
	{"inbox-in-another-transaction", "consumer", "TestFaultsOfAConsumer/consumer.before-handler=kill_action", "k paid",
		"a process dies between the claim and the handler, and the redelivery must run it"},
	{"inbox-not-scoped-by-consumer", "consumer", "TestIdentitiesStayApart", `want "paid k 1, paid k:k 1, paid k 1, paid k 1, other k 1"`,
		"two steps of one consumer get messages of one key, and both must run"},
	{"response-re-rendered", "idemkey/idempg", "TestEachTenantHasItsOwnBytesAgain", "the replay to tenant a",
		"a replay must have the spaces, the order and the numbers that were answered"},
	{"key-not-tenant-scoped", "idemkey/idempg", "TestEachTenantHasItsOwnBytesAgain", "the first request of tenant b: 201, a replay",
		"a second tenant uses the key of the first, and its request must run"},
	{"forward-order-compensation", "internal/machine", "TestTraces", "nobody has asked to undo it",
		"what is undone next is written down, event by event"},
	{"forward-order-compensation", "saga", "TestADeadlineUndoesWhatMayHaveBeenDone", "no flight no hotel",
		"flight and then hotel are booked, and the hotel must be cancelled first"},
	{"double-compensation", "consumer", "TestDuplicatesRunOnce", "refunded k 2, refunded k 2",
		"one compensation is delivered ten times, and must take effect once"},
	{"cursor-outbox", "outbox", "TestWhatCommitsLateIsPublished", "read 0 messages",
		"a transaction commits after one with a larger id was published, and must be published too"},
	{"nack-requeue", "consumer", "TestOneMessageOfABatchFails", "acked",
		"a handler fails, and its delivery must be acked once it is parked"},
	{"safe-to-retry", "consumer", "TestALostCommitReplyIsLookedUp/committed", `effects "paid k 1, paid k 1"`,
		"the reply to a COMMIT is lost, and the step must not run again"},
	{"safe-to-retry", "consumer", "TestABatchWhoseCommitReplyIsLost/committed", "k0 retrying",
		"the same, of a batch"},
	{"safe-to-retry", "idemkey/idempg", "TestAmbiguousCommit/committed", `2 business rows of "k"`,
		"the same, of a request, whose retry must be a replay"},
	{"stale-lease-accepted", "outbox", "TestATenureThatIsOverChangesNothing", "noting what is published: <nil>",
		"a relay goes on after another one has taken over, and must change nothing"},
	{"stale-lease-accepted", "idemkey/idempg", "TestOvertakenBeforeLock", "statement of an overtaken owner: <nil>",
		"the owner of a key stalls until another has taken it over, and its first statement must fail"},
}
