package sagatest

// A bug is a mistake that tests build into the modelled consumer, relay or
// orchestrator, to see that it is found.
type bug string

const (
	ackBeforeCommit     bug = "ack before commit"
	dedupeBeforeWork    bug = "inbox row in a transaction before the work"
	noTombstone         bug = "no tombstone"
	undoNotDeduped      bug = "compensations are not in the inbox"
	publishBeforeCommit bug = "published before commit"
	markBeforePublish   bug = "relay marks before it publishes"
	keyWithoutN         bug = "inbox key without n"
	foldTwice           bug = "orchestrator without dedupe"
	forwardOrder        bug = "compensation in forward order"
	forgetTimedOut      bug = "steps without a reply are not compensated"
	ignorePivot         bug = "compensates behind the pivot"
	lateIsDone          bug = "late reply taken for success"
)
