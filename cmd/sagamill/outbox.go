package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/sagamill/sagamill/outbox"
)

func outboxCommands() []command {
	return []command{{"outbox status", "what is unpublished, and which relay publishes; asks the database alone", outboxStatus}}
}

func outboxStatus(ctx context.Context, c *call) error {
	asJSON := c.flags.Bool("json", false, "print JSON")
	if err := c.parseDatabase(); err != nil {
		return err
	}
	db, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	s, err := outbox.ReadStats(ctx, db, *c.schema)
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(c.stdout, newStatus(*c.schema, s))
	}
	fields := [][2]string{
		{"stored", fmt.Sprintf("%s, the oldest for %s", counted(s.Stored), s.Oldest.Round(time.Millisecond))},
		{"delayed", counted(s.Delayed)},
		{"waiting", counted(s.Waiting)},
		{"refused", counted(s.Refused)},
		{"dead", counted(s.Dead)},
		{"relay", fmt.Sprintf("%s, epoch %d", relayName(s), s.Epoch)},
	}
	for _, leaf := range slices.Sorted(maps.Keys(s.Leaves)) {
		fields = append(fields, [2]string{leaf, fmt.Sprintf("%.1f MiB", float64(s.Leaves[leaf])/(1<<20))})
	}
	if s.WriterPID != 0 {
		fields = append(fields, [2]string{"writer", fmt.Sprintf("a transaction that has written is open for %s, server process %d", s.OldestWriter.Round(time.Millisecond), s.WriterPID)})
	}
	return printFields(c.stdout, fields)
}

// counted says where a number of [outbox.Stats] is a lower bound.
func counted(n int) string {
	if n >= outbox.CountLimit {
		return "at least " + strconv.Itoa(n)
	}
	return strconv.Itoa(n)
}

func relayName(s outbox.Stats) string {
	if s.Holder != "" {
		return cell(s.Holder)
	}
	return "none"
}

// A status is what outbox status prints as JSON. Numbers of messages are at least
// so many from count_limit on.
type status struct {
	Schema     string           `json:"schema"`
	CountLimit int              `json:"count_limit"`
	Stored     int              `json:"stored"`
	Oldest     float64          `json:"oldest_seconds"`
	Delayed    int              `json:"delayed"`
	Waiting    int              `json:"waiting"`
	Refused    int              `json:"refused"`
	Dead       int              `json:"dead"`
	Holder     string           `json:"holder"`
	Epoch      int64            `json:"epoch"`
	Leaves     map[string]int64 `json:"leaf_bytes"`
	Writer     float64          `json:"oldest_writer_seconds"`
	WriterPID  int              `json:"oldest_writer_pid"`
}

func newStatus(schema string, s outbox.Stats) status {
	return status{
		Schema: schema, CountLimit: outbox.CountLimit, Stored: s.Stored, Oldest: s.Oldest.Seconds(), Delayed: s.Delayed, Waiting: s.Waiting,
		Refused: s.Refused, Dead: s.Dead, Holder: s.Holder, Epoch: s.Epoch, Leaves: s.Leaves,
		Writer: s.OldestWriter.Seconds(), WriterPID: s.WriterPID,
	}
}
