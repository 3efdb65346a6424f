// Package planted is the bugs that the tests are tested with: the mistakes that a
// library of this kind is most likely to make, each built into the product under
// a build tag of its own. The product says
//
//	if planted.AckBeforeCommit {
//		…
//	}
//
// where the mistake would be made. Without the tag that is a constant false, and the compiler
// removes it. With it the directed tests of package planted/mutants must fail, as
// must a storm on a binary that is built so: `go version -m` tells its tags.
//
// The tag of a bug is plant_ and its name, with underscores. Any number of them go
// together, and with failpoints.
package planted

import "strings"

// The bugs. Those of one kind, as of the inbox, are told apart by what is lost or
// done twice.
const (
	// AckBeforeCommit: a delivery is acked as soon as it has been read. A process that
	// dies before its transaction commits loses the message.
	AckBeforeCommit = ackBeforeCommit

	// MarkBeforeConfirm: the relay moves its cursor behind a window when it has read it. If it
	// dies before the broker has confirmed the messages, they are never published.
	MarkBeforeConfirm = markBeforeConfirm

	// InboxMissing: whatever the step's row says, the handler runs. A message that is
	// delivered twice has its effect twice.
	InboxMissing = inboxMissing

	// InboxInAnotherTransaction: the claim of a step, which says that it is done, commits
	// before the handler is entered. A process that dies in between loses the effect.
	InboxInAnotherTransaction = inboxInAnotherTransaction

	// InboxNotScopedByConsumer: all steps of a consumer share one row for a saga. Of those that listen to
	// messages with the same n, the first to come keeps the others from running.
	InboxNotScopedByConsumer = inboxNotScopedByConsumer

	// ResponseReRendered: a replay's body is written anew from what the stored one means,
	// so that its bytes differ.
	ResponseReRendered = responseReRendered

	// KeyNotTenantScoped: the keys of all tenants are one space. One tenant is refused, or
	// answered, because of another.
	KeyNotTenantScoped = keyNotTenantScoped

	// ForwardOrderCompensation: a saga undoes its steps in the order in which they were done.
	ForwardOrderCompensation = forwardOrderCompensation

	// DoubleCompensation: a compensation that is delivered again undoes the step again.
	DoubleCompensation = doubleCompensation

	// CursorOutbox: the relay remembers the largest id that it has read. A message whose
	// transaction commits after one with a larger id is never published.
	CursorOutbox = cursorOutbox

	// NackRequeue: a delivery whose handler fails is given back to the broker, which delivers it
	// again at once, instead of being parked until its next attempt.
	NackRequeue = nackRequeue

	// SafeToRetry: where COMMIT has no answer, pgconn.SafeToRetry is believed when it
	// says that nothing was sent. It says so of a transaction that has committed, which is done again.
	SafeToRetry = safeToRetry

	// StaleLeaseAccepted: who has lost a lease goes on: the relay as if it were the active
	// one, and the owner of an idempotency key, which runs the request beside the next owner.
	StaleLeaseAccepted = staleLeaseAccepted
)

// A Bug is one of them.
type Bug struct {
	Name    string
	Planted bool // in this build
}

// Tag is the build tag that plants it.
func (b Bug) Tag() string { return "plant_" + strings.ReplaceAll(b.Name, "-", "_") }

// Bugs returns all of them.
func Bugs() []Bug {
	return []Bug{
		{"ack-before-commit", AckBeforeCommit},
		{"mark-before-confirm", MarkBeforeConfirm},
		{"inbox-missing", InboxMissing},
		{"inbox-in-another-transaction", InboxInAnotherTransaction},
		{"inbox-not-scoped-by-consumer", InboxNotScopedByConsumer},
		{"response-re-rendered", ResponseReRendered},
		{"key-not-tenant-scoped", KeyNotTenantScoped},
		{"forward-order-compensation", ForwardOrderCompensation},
		{"double-compensation", DoubleCompensation},
		{"cursor-outbox", CursorOutbox},
		{"nack-requeue", NackRequeue},
		{"safe-to-retry", SafeToRetry},
		{"stale-lease-accepted", StaleLeaseAccepted},
	}
}
