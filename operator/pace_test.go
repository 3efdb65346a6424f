package operator

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/saga"
)

// A pace counts what began and ended by the minute, live or not, and leaves out what is older than an hour.
func TestReadPaceCountsByMinute(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	for _, key := range []string{"a", "b", "c", "d", "old"} {
		c.put(t, key, at(machine.InFlight))
	}
	at := func(key, began, ended string) {
		c.exec(t, `UPDATE {schema}.saga SET started_at = clock_timestamp() - $2::interval WHERE key = $1`, key, began)
		if ended != "" {
			c.exec(t, `UPDATE {schema}.saga SET ended_at = clock_timestamp() - $2::interval, status = $3 WHERE key = $1`, key, strings.Fields(ended)[0], strings.Fields(ended)[1])
		}
	}
	at("a", "150s", "90s completed")
	at("b", "150s", "30s compensated")
	at("c", "30s", "")
	at("d", "3h", "90s completed")
	at("old", "3h", "2h completed")
	p, err := c.n.ReadPace(t.Context())
	if err != nil || len(p.Minutes) != 60 || p.Known != 60 {
		t.Fatalf("ReadPace = %d minutes, %d known, %v", len(p.Minutes), p.Known, err)
	}
	for minute, want := range map[int]MinutePace{59: {Started: 1, Compensated: 1}, 58: {Completed: 2}, 57: {Started: 2}, 0: {}} {
		if got := p.Minutes[minute]; got != want {
			t.Errorf("minute %d = %+v, want %+v", minute, got, want)
		}
	}
}

// A filter by id picks one instance, one by step those that the step holds up, and one by moment those that have not
// changed since. A decision about many picks the same ones.
func TestInstanceFiltersOfAConsole(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.put(t, "a", at(machine.InFlight))
	c.put(t, "b", at(machine.Stuck))
	c.put(t, "c", machine.Progress{Phase: machine.Running, Steps: []machine.Step{{State: machine.Stuck, Attempt: 1}, {}}})
	moment, err := ReadClock(t.Context(), c.pool)
	if err != nil {
		t.Fatal(err)
	}
	c.exec(t, "UPDATE {schema}.saga SET updated_at = clock_timestamp() WHERE key = 'b'")
	id := c.texts(t, "SELECT id::text FROM {schema}.saga WHERE key = 'a'")[0]
	for name, tt := range map[string]struct {
		filter InstanceFilter
		want   string
	}{
		"id":      {InstanceFilter{ID: id}, "a"},
		"step":    {InstanceFilter{Step: "hotel"}, "a b"},
		"moment":  {InstanceFilter{UnchangedSince: moment}, "a c"},
		"both":    {InstanceFilter{Step: "hotel", UnchangedSince: moment}, "a"},
		"no step": {InstanceFilter{Step: "hot"}, ""},
	} {
		var listed, picked []string
		all, next, err := c.n.Walk(t.Context(), tt.filter, saga.Address{}, 10)
		for i := range all {
			listed = append(listed, all[i].Key)
		}
		if got := strings.Join(listed, " "); err != nil || got != tt.want || next != nil {
			t.Errorf("%s: Walk = %q, next %v, %v; want %q", name, got, next, err, tt.want)
		}
		_, err = c.n.PreviewAll(t.Context(), tt.filter, Decision{Verb: VerbPause}, func(p DecisionPreview) error {
			picked = append(picked, p.Key)
			return nil
		})
		if got := strings.Join(picked, " "); err != nil || got != tt.want {
			t.Errorf("%s: PreviewAll = %q, %v; want %q", name, got, err, tt.want)
		}
	}
	for name, filter := range map[string]InstanceFilter{"an id that is none": {ID: "x"}, "a step": {Step: "hotel"}} {
		if _, err := c.n.Count(t.Context(), filter); !errors.Is(err, ErrInvalid) {
			t.Errorf("Count of %s = %v, want ErrInvalid", name, err)
		}
	}
	_, next, err := c.n.Walk(t.Context(), InstanceFilter{Step: "none"}, saga.Address{}, 2)
	if err != nil || next == nil || next.Key != "b" {
		t.Errorf("a walk of 2 goes on at %v, %v; want b", next, err)
	}
}

// A repeated decision with the moment of its preview leaves alone what the first has changed.
func TestARepeatedDecisionChangesNothingTwice(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.put(t, "a", at(machine.InFlight))
	moment, err := ReadClock(t.Context(), c.pool)
	if err != nil {
		t.Fatal(err)
	}
	filter := InstanceFilter{Status: saga.StatusRunning, UnchangedSince: moment}
	for attempt, want := range []int{1, 0} {
		if got, err := c.n.DecideAll(t.Context(), filter, retryHotel, nil); err != nil || got.Decided != want {
			t.Errorf("attempt %d decides about %d, %v; want %d", attempt+1, got.Decided, err, want)
		}
	}
}

// The server ends a read that takes longer than ReadTimeout.
func TestReadTimeoutEndsAStatement(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	n, err := NewInstances(f.pool, &Options{Schema: f.schema, ReadTimeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+f.schema+".saga IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	reads := map[string]func() error{
		"List":     func() error { _, err := n.List(t.Context(), InstanceFilter{}, saga.Address{}, 1); return err },
		"Count":    func() error { _, err := n.Count(t.Context(), InstanceFilter{}); return err },
		"ReadPace": func() error { _, err := n.ReadPace(t.Context()); return err },
		"PreviewAll": func() error {
			_, err := n.PreviewAll(t.Context(), InstanceFilter{}, Decision{Verb: VerbRetry, By: "ann", Why: "x"}, nil)
			return err
		},
	}
	for name, read := range reads {
		var refused *pgconn.PgError
		if err := read(); !errors.As(err, &refused) || refused.Code != "57014" {
			t.Errorf("%s = %v, want the error 57014", name, err)
		}
	}
	if _, err := NewInstances(f.pool, &Options{ReadTimeout: -1}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a negative ReadTimeout = %v, want ErrInvalid", err)
	}
}

// The schema is listed, and so is a connection by its application name.
func TestProcessesAndSchemasAreListed(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	config := pgtest.DirectConfig(t)
	config.ConnConfig.RuntimeParams["application_name"] = schema
	conn, err := pgx.ConnectConfig(t.Context(), config.ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	all, err := ListProcesses(t.Context(), pool)
	found := 0
	for _, p := range all {
		if p.Name == schema && p.Role != "" {
			found = p.Connections
		}
	}
	if err != nil || found != 1 {
		t.Errorf("ListProcesses = %v, %v; want one connection of %s", all, err, schema)
	}
	names, err := ListSchemas(t.Context(), pool)
	if err != nil || !strings.Contains(" "+strings.Join(names, " ")+" ", " "+schema+" ") {
		t.Errorf("ListSchemas = %v, %v; want %s among them", names, err, schema)
	}
}
