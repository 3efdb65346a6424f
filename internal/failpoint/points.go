package failpoint

import (
	"slices"
	"strings"
)

// points lists all points by component, in the order in which a process reaches them. A test compares them
// with the calls of Hit.
var points = []Point{
	{"idemkey/after-begin", "the store has the key claimed", "the handler is entered"},
	{"idemkey/before-keep", "", "the response is stored"},
	{"idemkey/after-keep", "the response is stored", "its first byte is written"},
	{"idemkey/before-release", "", "the key is released"},
	{"idemkey/after-release", "the key is released", "the answer that is not kept is written"},
	{"idemkey/after-bury", "a tombstone is stored for a response that is streamed", "its first byte is written"},
	{"idempg/after-claim", "the claim is committed", "the handler's transaction begins"},
	{"idempg/before-commit", "", "the handler's transaction commits, response and all"},
	{"idempg/after-commit", "the handler's transaction has committed", "the claim counts as ended"},
	{"idempg/after-rollback", "the transaction of a rejected request is rolled back", "its response is stored"},
	{"idemredis/after-claim", "the claim is stored", "the handler is entered"},
	{"idemredis/before-save", "", "the response is stored"},
	{"idemredis/after-save", "the response is stored", "the claim counts as ended"},
	{"idemhybrid/after-lock", "Redis has the lock", "the claim is made in PostgreSQL"},
	{"idemhybrid/after-claim", "PostgreSQL has the claim, and Redis the lock", "the handler is entered"},
	{"idemhybrid/before-free", "the outcome is durable in PostgreSQL", "the lock in Redis is freed"},

	{"outbox/before-take-over", "", "the lease is taken from whoever has it"},
	{"outbox/after-take-over", "the lease is taken", "the log is read"},
	{"outbox/before-adopt", "", "a log that was restored from another cluster becomes one of this"},
	{"outbox/after-promote", "what waited behind a message that is gone is due", "it is read"},
	{"outbox/after-read-held", "refused messages that are due are read", "they are published"},
	{"outbox/before-move", "", "delayed messages that are due become part of the log"},
	{"outbox/after-move", "delayed messages that are due are part of the log", "they are read"},
	{"outbox/after-read", "a window is read", "it is published"},
	{"outbox/before-publish", "", "messages are handed to the broker"},
	{"outbox/after-confirm", "the broker has confirmed messages", "the relay takes note"},
	{"outbox/after-publish", "the broker has confirmed the window", "the cursor is moved"},
	{"outbox/before-commit", "", "what was refused is held, and the cursor moved"},
	{"outbox/after-checkpoint", "the cursor is moved", "the window is forgotten"},
	{"outbox/before-turn-cursors", "", "the older table of cursors is emptied"},
	{"outbox/after-turn-cursors", "the older table of cursors is emptied", "cursors are written to it"},
	{"outbox/before-empty", "", "a published leaf of the log is emptied"},
	{"outbox/after-empty", "a published leaf of the log is emptied", "it counts as empty"},
	{"outbox/after-turn-leaves", "new messages go to another leaf", "the next one is looked for"},
	{"outbox/before-renew", "", "the lease is renewed"},
	{"outbox/after-renew", "the lease is renewed", "the relay takes note"},
	{"outbox/before-release", "", "the lease is given back"},

	{"consumer/after-take", "parked messages are taken, and their attempts counted", "they are read and run"},
	{"consumer/after-name", "a message that could not be read has its identity", "it is run"},
	{"consumer/after-count", "the coming entry is counted", "the identity is claimed"},
	{"consumer/before-handler", "the identity is claimed", "the handler is entered"},
	{"consumer/after-dead-letter", "a dead letter is written", "that commits"},
	{"consumer/before-commit", "", "the step commits, with what it emits"},
	{"consumer/after-commit", "the step has committed", "the delivery is settled"},
	{"consumer/before-ack", "", "the delivery is acked"},
	{"consumer/after-ack", "the delivery is acked", "the relay is woken"},
	{"consumer/after-parked", "a parked message is dealt with", "the relay is woken, and its worker is free"},

	{"effect/after-claim", "the lease on the effect is committed", "the provider is asked, or called"},
	{"effect/before-verify", "", "the provider is asked"},
	{"effect/after-verify", "the provider has said what it knows", "that is recorded, or the provider is called"},
	{"effect/before-call", "", "the provider is called"},
	{"effect/after-call", "the provider has answered", "the answer is recorded"},
	{"effect/before-record", "", "the answer is recorded"},
	{"effect/after-record", "the answer is recorded", "the delivery is settled"},

	{"redrive/outbox-before-commit", "", "dead letters of the outbox are redriven, released or discarded"},
	{"redrive/outbox-after-commit", "dead letters of the outbox are redriven, released or discarded", "they are counted"},
	{"redrive/before-commit", "", "what an operator does with dead letters commits"},
	{"redrive/after-commit", "what an operator does with dead letters has committed", "the operator is told"},
	{"redrive/outbox-replay-before-commit", "", "copies of a part of a range are stored"},
	{"redrive/outbox-replay-after-commit", "copies of a part of a range are stored", "they are counted"},

	{"saga/after-instance", "the instance is in the caller's transaction", "its first commands are"},
	{"saga/after-start", "the instance and its first commands are in the caller's transaction", "the caller commits it"},
	{"saga/after-timer-claim", "due timers are claimed", "they run"},
	{"saga/before-timer-commit", "", "what a timer did commits"},
	{"saga/after-timer-commit", "what a timer did has committed", "the next one runs"},
	{"saga/before-decision-commit", "", "what an operator has decided commits"},
	{"saga/after-decision-commit", "what an operator has decided has committed", "the operator is told"},
}

// Points returns the points of the named components, or all points without a name. The component is the part
// of a name before the slash.
func Points(components ...string) (of []Point) {
	for _, p := range points {
		component, _, _ := strings.Cut(p.Name, "/")
		if len(components) == 0 || slices.Contains(components, component) {
			of = append(of, p)
		}
	}
	return of
}
