package main

import "strings"

// A model is a file of the folder, in one of its configurations.
type model struct {
	name    string
	file    string
	defines []string
}

var models = []model{
	{name: "request", file: "request.pml"},
	{name: "relay", file: "relay.pml"},
	{name: "relay-server-crash", file: "relay.pml", defines: []string{"SERVER_CRASH"}},
	{name: "consumer", file: "consumer.pml"},
	{name: "consumer-one-copy", file: "consumer.pml", defines: []string{"COPIES=1"}},
	{name: "saga", file: "saga.pml"},
	{name: "saga-parallel", file: "saga.pml", defines: []string{"PARALLEL"}},
	{name: "saga-pivot", file: "saga.pml", defines: []string{"PIVOT"}},
	{name: "order", file: "order.pml"},
}

// ends is the one property without a variable: every run comes to rest.
const ends = "ends"

// A bug is planted in a model by a define, and breaks a property.
type bug struct {
	model  string
	name   string
	breaks string
}

func (b bug) String() string { return b.model + "/" + b.name }

// defineFlag returns the flag that plants b.
func (b bug) defineFlag() string {
	return "BUG_" + strings.ToUpper(strings.ReplaceAll(b.name, "-", "_"))
}

var bugs = []bug{
	{"request", "claim-by-clock", "commit_once"},
	{"request", "lost-commit-freed", "commit_once"},
	{"request", "record-after-commit", "commit_once"},
	{"request", "answer-before-commit", "durable_first"},
	{"request", "answer-made-anew", "same_answer"},
	{"request", "record-missing", "record_tells"},

	{"relay", "mark-before-confirm", "confirmed_first"},
	{"relay", "returned-counts", "confirmed_first"},
	{"relay", "held-after-cursor", "confirmed_first"},
	{"relay", "bare-id-cursor", "nothing_lost"},
	{"relay", "leaf-emptied-unread", "nothing_lost"},
	{"relay", "stale-cursor-wins", "cursor_forward"},
	{"relay", "stale-lease-accepted", "ordered"},
	{"relay", "two-in-flight", "ordered"},
	{"relay", "blocked-keys-forgotten", "ordered"},
	{"relay", "uncommitted-read", "committed_only"},
	{"relay-server-crash", "tenure-survives-crash", "nothing_lost"},

	{"consumer", "ack-before-commit", "acked_is_settled"},
	{"consumer", "inbox-missing", "action_once"},
	{"consumer", "inbox-in-another-transaction", "action_once"},
	{"consumer", "absent-row-unlocked", "action_once"},
	{"consumer", "lost-commit-redone", "action_once"},
	{"consumer", "double-compensation", "undo_once"},
	{"consumer", "compensation-unconditional", "undo_of_done"},
	{"consumer", "tombstone-missing", "never_after_undo"},
	{"consumer", "tombstone-unanswered", "all_answered"},
	{"consumer", "poison-dropped", "nothing_lost"},
	{"consumer-one-copy", "crash-uncounted", "within_budget"},
	{"consumer-one-copy", "fence-missing", "within_budget"},
	{"consumer", "retries-unbounded", ends},

	{"saga", "timer-unconditional", "deadline_or_reply"},
	{"saga", "forward-compensation", "reverse_order"},
	{"saga", "deadline-is-rejection", "all_or_nothing"},
	{"saga", "double-compensation", "once"},
	{"saga", "tombstone-missing", "never_after_undo"},
	{"saga", "tombstone-unanswered", "ended"},
	{"saga-parallel", "flight-not-awaited", "all_or_nothing"},
	{"saga-pivot", "pivot-compensated", "pivot_holds"},
	{"saga-pivot", "stuck-is-deaf", "ended"},
	{"saga-pivot", "attempt-reused", "ended"},

	{"order", "lost-commit-redone", "order_once"},
	{"order", "answer-before-commit", "durable_first"},
	{"order", "inbox-missing", "charge_once"},
	{"order", "mark-before-confirm", "confirmed_first"},
	{"order", "published-by-handler", "no_ghosts"},
	{"order", "ack-before-commit", "handled_first"},
	{"order", "automatic-ack", "nothing_lost"},
	{"order", "refund-missing", "money_conserved"},
}
