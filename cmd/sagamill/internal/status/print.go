package status

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/outboxes"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// printBlock prints the block of a schema.
func (s *schema) printBlock(w io.Writer) error {
	version := fmt.Sprintf("version %d of %d", s.Version, migrations.Newest())
	if s.Denied {
		version = "version unknown, because the role may not read it"
		if s.Hidden != "" {
			version = "version unknown, because row-level security hides rows of " + s.Hidden
		}
	}
	fmt.Fprintf(w, "%s, %s: %s\n", s.Name, version, joinParts(s.Parts))
	var fields [][2]string
	add := func(name, text string) { fields = append(fields, [2]string{"  " + name, text}) }
	if s.Outbox != nil {
		add("outbox", formatOutbox(s.Outbox))
		add("relay", outboxes.FormatRelay(s.Outbox))
	}
	if s.Inbox != nil {
		add("inbox", formatInbox(s.Inbox))
	}
	if s.Sagas != nil {
		add("sagas", formatSagas(s.Sagas))
		add("orchestrator", formatOverdue("instance", s.Sagas.Overdue))
	}
	if s.Requests != nil {
		add("requests", formatRequests(s.Requests))
	}
	for _, p := range s.Unreadable {
		add(string(p.Part), "cannot be read: "+cli.EscapeText(strings.Join(strings.Fields(p.Err.Error()), " ")))
	}
	if err := cli.PrintFields(w, fields); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

func joinParts(parts []migrations.Part) string {
	names := make([]string, len(parts))
	for i := range parts {
		names[i] = string(parts[i])
	}
	return strings.Join(names, ", ")
}

// formatOldest says how long the first of several has waited. It returns "" if that is not known.
func formatOldest(oldest time.Duration) string {
	if oldest <= 0 {
		return ""
	}
	return ", the oldest for " + cli.FormatAge(oldest)
}

func formatOutbox(o *outbox.Stats) string {
	text := fmt.Sprintf("%s stored%s; %s delayed, %s waiting, %s refused, %s dead%s",
		outboxes.FormatCounted(o.Stored), formatOldest(o.Oldest), outboxes.FormatCounted(o.Delayed), outboxes.FormatCounted(o.Waiting),
		outboxes.FormatCounted(o.Refused), outboxes.FormatCounted(o.Dead), formatOldest(o.OldestDead))
	if o.OldestWriter > time.Minute {
		text += fmt.Sprintf("; a transaction that has written has been open for %s, server process %d", cli.FormatAge(o.OldestWriter), o.WriterPID)
	}
	return text
}

func formatInbox(i *consumer.Stats) string {
	var retrying, dead time.Duration
	for k := range i.Parked {
		if p := &i.Parked[k]; p.Dead {
			dead = max(dead, p.Oldest)
		} else {
			retrying = max(retrying, p.Oldest)
		}
	}
	return fmt.Sprintf("%s retrying, %s calling%s, %s; %s dead%s%s",
		outboxes.FormatCounted(i.Retrying), outboxes.FormatCounted(i.Calling), formatOldest(retrying), formatOverdue("message", i.Overdue),
		outboxes.FormatCounted(i.Dead), formatReasons(i), formatOldest(dead))
}

// formatReasons counts the dead letters by reason, the most frequent one first.
func formatReasons(i *consumer.Stats) string {
	counts := map[consumer.Reason]int{}
	for k := range i.Parked {
		if p := &i.Parked[k]; p.Dead {
			counts[p.Reason] += p.Messages
		}
	}
	var parts []string
	for _, r := range slices.SortedFunc(maps.Keys(counts), func(a, b consumer.Reason) int { return cmp.Or(counts[b]-counts[a], cmp.Compare(a, b)) }) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[r], cli.FormatCell(string(r))))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// formatOverdue says how long work that is due has waited.
func formatOverdue(of string, overdue time.Duration) string {
	if overdue <= time.Second {
		return "nothing is overdue"
	}
	return "one " + of + " is overdue for " + cli.FormatAge(overdue)
}

func formatSagas(g *saga.Stats) string {
	silent := ""
	if g.Silent > 0 {
		silent = ", one unchanged for " + cli.FormatAge(g.Silent)
	}
	waits := ""
	if g.Held > 0 {
		waits = fmt.Sprintf(" (%s of them held by a dead letter at a participant%s)", outboxes.FormatCounted(g.Held), formatOldest(g.OldestHeld))
	}
	return fmt.Sprintf("%s running%s, %s compensating%s; %s stuck%s; %s paused%s",
		outboxes.FormatCounted(g.Running), waits, outboxes.FormatCounted(g.Compensating), silent,
		outboxes.FormatCounted(g.Stuck), formatOldest(g.OldestStuck), outboxes.FormatCounted(g.Paused), formatOldest(g.OldestPaused))
}

func formatRequests(r *operator.RequestStats) string {
	text := fmt.Sprintf("%s in progress", outboxes.FormatCounted(r.InProgress))
	if r.Abandoned > 0 {
		text += fmt.Sprintf(", %s of them past their lease%s", outboxes.FormatCounted(r.Abandoned), formatOldest(r.OldestAbandoned))
	}
	if r.Unknown > 0 {
		text += fmt.Sprintf("; %s of unknown outcome%s", outboxes.FormatCounted(r.Unknown), formatOldest(r.OldestUnknown))
	}
	return text
}

// explainProblem describes a problem, and returns the command to run next.
func (s *schema) explainProblem(n *operator.Problem) (text, command string) {
	count := func(things string) string {
		if n.Count >= outbox.CountLimit {
			return "at least " + cli.FormatCount(n.Count, things)
		}
		return cli.FormatCount(n.Count, things)
	}
	age := cli.FormatAge(n.Oldest)
	switch n.Kind {
	case operator.ProblemMigration:
		return "migrations that this command knows are missing in the schema", s.commandLine("migrate up")
	case operator.ProblemHidden:
		return "row-level security hides rows of " + s.Hidden + " from this role: a service whose role is treated so neither publishes nor handles messages", s.commandLine("migrate roles")
	case operator.ProblemGrant:
		return "the role may not read all of the schema: run the SQL of the roles again", s.commandLine("migrate roles")
	case operator.ProblemRepair:
		return "a part cannot be read", s.commandLine("migrate version")
	case operator.ProblemSequence:
		return fmt.Sprintf("the sequence of the outbox's ids is %d behind its rows, as after a data-only restore: start a relay, which raises it before it publishes", s.Outbox.SequenceBehind), s.commandLine("outbox status")
	case operator.ProblemRelay:
		return count("messages") + " stored, and no relay is active" + formatOldest(n.Oldest), s.commandLine("outbox status")
	case operator.ProblemBroker:
		return "a relay is active, and " + count("messages") + " stored" + formatOldest(n.Oldest) + ": does the broker answer?", s.commandLine("outbox status")
	case operator.ProblemTransaction:
		return fmt.Sprintf("a transaction that has written has been open for %s, server process %d", age, s.Outbox.WriterPID), s.commandLine("outbox status")
	case operator.ProblemRefused:
		return count("messages") + " that the broker refuses, or that wait behind refused ones", s.commandLine("outbox refused list")
	case operator.ProblemOutboxDead:
		return count("dead letters") + " of the outbox" + formatOldest(n.Oldest), s.commandLine("outbox dead list")
	case operator.ProblemConsumer:
		return "a parked message is due for " + age + ": does its consumer run?", s.commandLine("dead list -state retrying")
	case operator.ProblemDead:
		return count("dead letters") + " of steps" + formatReasons(s.Inbox) + formatOldest(n.Oldest), s.commandLine("dead list")
	case operator.ProblemOrchestrator:
		return "an instance is due for " + age + ": does an orchestrator run that knows its version?", s.commandLine("saga list -silent 1m")
	case operator.ProblemStuck:
		return count("sagas") + " stuck" + formatOldest(n.Oldest), s.commandLine("saga list -status stuck")
	case operator.ProblemPaused:
		return count("sagas") + " paused" + formatOldest(n.Oldest), s.commandLine("saga list -status paused")
	case operator.ProblemHeld:
		return count("sagas") + " held by a dead letter at a participant" + formatOldest(n.Oldest), s.commandLine("saga list -status running")
	case operator.ProblemSweeper:
		return "an idempotency key expired " + age + " ago and is still stored: does an idemkey.Sweeper run?", s.commandLine("status")
	case operator.ProblemUnknown:
		return count("requests") + " of unknown outcome" + formatOldest(n.Oldest) + ": no retry runs them before a decision", s.commandLine("keys list")
	}
	return string(n.Kind), s.commandLine("outbox status")
}

// commandLine returns the command line of words for the schema.
func (s *schema) commandLine(words string) string { return "sagamill " + words + s.Flags }
