// Package outboxes has the commands on outboxes: their state, dead letters and refused messages.
package outboxes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/outbox"
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{
		{Words: "outbox status", About: "print how many messages are unpublished, and which relay is active; the command reads only the database, and does not connect to the broker", Run: outboxStatus},
		{Words: "outbox dead list", About: "list the dead letters of the outbox: messages that the broker refused until their attempts were used up", Run: outboxDeadList},
		{Words: "outbox dead show", About: "print all details of the dead letters whose ids you give with -id", Run: outboxDeadShow},
		{Words: "outbox dead redrive", About: "publish dead letters of the outbox again; choose them with -id, or with -all and filter flags", Run: outboxDeadRedrive},
		{Words: "outbox dead discard", About: "remove dead letters of the outbox for good; choose them with -id, or with -all and filter flags", Run: outboxDeadDiscard},
		{Words: "outbox refused list", About: "list messages that the broker has refused and that the relay will try again", Run: outboxRefusedList},
		{Words: "outbox refused release", About: "turn refused messages into dead letters now, so that the relay publishes the messages that wait behind them; give the ids of the refused messages with -id", Run: outboxRefusedRelease},
	}
}

func outboxStatus(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.DefaultSchema)
	asJSON := c.Flags.Bool("json", false, "print JSON, one object per line")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	return c.ForEachTarget(ctx, cli.DefaultSchema, *asJSON, func(ctx context.Context, t *cli.Target) error {
		ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
		defer cancel()
		s, err := outbox.ReadStats(ctx, t.DB, t.Schema)
		if err != nil {
			return err
		}
		if *asJSON {
			return cli.PrintJSON(c.Stdout, NewStatus(t.Name, &s))
		}
		return printStatus(c, &s)
	})
}

func printStatus(c *cli.Call, s *outbox.Stats) error {
	fields := [][2]string{
		{"stored", fmt.Sprintf("%s, the oldest for %s", FormatCounted(s.Stored), s.Oldest.Round(time.Millisecond))},
		{"delayed", FormatCounted(s.Delayed)},
		{"waiting", FormatCounted(s.Waiting)},
		{"refused", FormatCounted(s.Refused)},
		{"dead", FormatCounted(s.Dead)},
		{"relay", FormatRelay(s)},
	}
	if s.SequenceBehind > 0 {
		fields = append(fields, [2]string{"sequence", fmt.Sprintf("%d behind the largest id; a relay that starts raises it", s.SequenceBehind)})
	}
	for _, leaf := range slices.Sorted(maps.Keys(s.Leaves)) {
		fields = append(fields, [2]string{leaf, fmt.Sprintf("%.1f MiB", float64(s.Leaves[leaf])/(1<<20))})
	}
	if s.WriterPID != 0 {
		fields = append(fields, [2]string{"writer", fmt.Sprintf("a transaction that has written has been open for %s, server process %d", s.OldestWriter.Round(time.Millisecond), s.WriterPID)})
	}
	return cli.PrintFields(c.Stdout, fields)
}

// FormatCounted returns a number of [outbox.Stats], marked if it is a lower bound.
func FormatCounted(n int) string {
	if n >= outbox.CountLimit {
		return "at least " + strconv.Itoa(n)
	}
	return strconv.Itoa(n)
}

// FormatRelay returns the active relay, with what is left of its lease, or the one whose lease ran out.
func FormatRelay(s *outbox.Stats) string {
	switch {
	case s.Holder != "":
		return fmt.Sprintf("%s, its lease for %s more, epoch %d", cli.FormatCell(s.Holder), s.Lease.Round(time.Millisecond), s.Epoch)
	case s.LastHolder != "":
		return fmt.Sprintf("none; the lease of %s ended %s ago, epoch %d", cli.FormatCell(s.LastHolder), cli.FormatAge(-s.Lease), s.Epoch)
	}
	return fmt.Sprintf("none, epoch %d", s.Epoch)
}

// A Status is the output of outbox status as JSON. A number of messages that is not below count_limit
// is a lower bound.
type Status struct {
	Schema     string           `json:"schema"`
	CountLimit int              `json:"count_limit"`
	Stored     int              `json:"stored"`
	Oldest     float64          `json:"oldest_seconds"`
	Delayed    int              `json:"delayed"`
	Waiting    int              `json:"waiting"`
	Refused    int              `json:"refused"`
	Dead       int              `json:"dead"`
	OldestDead float64          `json:"oldest_dead_seconds"`
	Holder     string           `json:"holder"`
	LastHolder string           `json:"last_holder"`
	Lease      float64          `json:"lease_seconds"` // negative: it is over
	Epoch      int64            `json:"epoch"`
	Leaves     map[string]int64 `json:"leaf_bytes"`
	Behind     int64            `json:"sequence_behind"`
	Writer     float64          `json:"oldest_writer_seconds"`
	WriterPID  int              `json:"oldest_writer_pid"`
}

// NewStatus returns stats as JSON.
func NewStatus(schema string, s *outbox.Stats) Status {
	return Status{
		Schema: schema, CountLimit: outbox.CountLimit, Stored: s.Stored, Oldest: s.Oldest.Seconds(), Delayed: s.Delayed, Waiting: s.Waiting,
		Refused: s.Refused, Dead: s.Dead, OldestDead: s.OldestDead.Seconds(), Holder: s.Holder, LastHolder: s.LastHolder, Lease: s.Lease.Seconds(), Epoch: s.Epoch, Leaves: s.Leaves,
		Behind: s.SequenceBehind, Writer: s.OldestWriter.Seconds(), WriterPID: s.WriterPID,
	}
}
