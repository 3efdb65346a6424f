package operator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
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
	for _, key := range []string{"a", "b", "c", "d", "long", "old"} {
		c.put(t, key, at(machine.InFlight))
	}
	at := func(key, began, ended string) {
		c.exec(t, `UPDATE {schema}.saga SET started_at = began, id = (lpad(to_hex((extract(epoch FROM began) * 1000)::bigint), 12, '0') || '7' || substr(md5(key), 1, 3) || '8' || substr(md5(key), 1, 15))::uuid
			FROM (SELECT clock_timestamp() - $2::interval AS began) AS moment WHERE key = $1`, key, began)
		if ended != "" {
			c.exec(t, `UPDATE {schema}.saga SET ended_at = clock_timestamp() - $2::interval, status = $3 WHERE key = $1`, key, strings.Fields(ended)[0], strings.Fields(ended)[1])
		}
	}
	at("a", "150s", "90s completed")
	at("b", "150s", "30s compensated")
	at("c", "30s", "")
	at("d", "3h", "90s completed")
	at("long", "3570s", "") // by a process whose clock was slow by 100 s, as its id shows
	c.exec(t, `UPDATE {schema}.saga SET id = (lpad(to_hex((extract(epoch FROM clock_timestamp() - interval '3670 s') * 1000)::bigint), 12, '0') || '70008000000000000001')::uuid WHERE key = 'long'`)
	at("old", "3h", "2h completed")
	p, err := c.n.ReadPace(t.Context())
	if err != nil || len(p.Minutes) != 60 || p.Known != 60 {
		t.Fatalf("ReadPace = %d minutes, %d known, %v", len(p.Minutes), p.Known, err)
	}
	for minute, want := range map[int]MinutePace{59: {Started: 1, Compensated: 1}, 58: {Completed: 2}, 57: {Started: 2}, 0: {Started: 1}, 1: {}} {
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

// A rate near 0 waits for as long as can be, and not for no time at all.
func TestATinyRateWaits(t *testing.T) {
	t.Parallel()
	for r, want := range map[rate]time.Duration{1e-300: math.MaxInt64, 1e-12: math.MaxInt64, 2: 5 * time.Second} {
		if got := r.timeOf(10); got != want {
			t.Errorf("10 letters at %g per second take %v, want %v", r, got, want)
		}
	}
}

// A search for a key, an id or a name goes to the rows that it names, in every scope, and finds what the filter picks.
func TestSearchesGoToTheRowsThatTheyName(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	ids := map[string]string{}
	for i, moment := range []string{"now() - interval '3 hours'", "now()", "NULL"} { // ended long after the id, soon after it, not at all
		for n, scope := range []string{"acme", "other"} {
			id := uuid.Must(uuid.NewV7()).String()
			if i == 0 { // of a saga that ran for hours
				id = fmt.Sprintf("01890000-0000-7000-8000-00000000000%d", n)
			}
			ids[fmt.Sprint(scope, i)] = id
			c.exec(t, `INSERT INTO {schema}.saga (scope, key, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at, ended_at)
				VALUES ($1, $2, $3, $3, 1, 'voyage', 'h', least(`+moment+`, now()) - CASE WHEN $4 THEN interval '4 hours' ELSE '1 second' END, '{}', '{}', CASE WHEN `+moment+` IS NULL THEN 'running' ELSE 'completed' END, now(), `+moment+`)`, scope, fmt.Sprint("named", i), id, i == 0)
		}
	}
	ahead, err := uuid.NewV7() // from a clock that was ahead by a minute
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint64(ahead[:8], binary.BigEndian.Uint64(ahead[:8])+uint64(time.Minute/time.Millisecond)<<16)
	future := ahead.String()
	ids["acmeahead"] = future
	c.exec(t, `INSERT INTO {schema}.saga_definition (name, version, hash, plan) VALUES ('ferry', 1, 'h', '{}')`)
	c.exec(t, `INSERT INTO {schema}.saga (scope, key, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at, ended_at)
		VALUES ('acme', 'namedahead', $1, $1, 1, 'ferry', 'h', now() - interval '1 second', '{}', '{}', 'completed', now(), now())`, future)
	for at, id := range ids {
		found, err := c.n.List(t.Context(), InstanceFilter{ID: id}, Address{}, 10)
		if err != nil || len(found) != 1 || found[0].ID != id || found[0].Scope+strings.TrimPrefix(found[0].Key, "named") != at {
			t.Errorf("%s: the id finds %+v, %v", at, found, err)
		}
	}
	for name, tt := range map[string]struct {
		filter InstanceFilter
		want   int
	}{
		"a key of two scopes":    {InstanceFilter{Key: "named1"}, 2},
		"a key in a scope":       {InstanceFilter{Key: "named1", Scope: "other"}, 1},
		"a key with a state":     {InstanceFilter{Key: "named2", Status: "completed"}, 0},
		"no key":                 {InstanceFilter{Key: "named9"}, 0},
		"an id in its scope":     {InstanceFilter{ID: ids["acme1"], Scope: "acme"}, 1},
		"an id in another":       {InstanceFilter{ID: ids["acme1"], Scope: "other"}, 0},
		"an id of none":          {InstanceFilter{ID: uuid.Must(uuid.NewV7()).String()}, 0},
		"an id of no instance":   {InstanceFilter{ID: uuid.NewString()}, 0},
		"a name that is live":    {InstanceFilter{Saga: "voyage"}, 6},
		"a name that has ended":  {InstanceFilter{Saga: "ferry"}, 1},
		"a name that is unknown": {InstanceFilter{Saga: "cruise"}, 0},
	} {
		found, err := c.n.List(t.Context(), tt.filter, Address{}, 10)
		count, err2 := c.n.Count(t.Context(), tt.filter)
		if err := errors.Join(err, err2); err != nil || len(found) != tt.want || count != tt.want {
			t.Errorf("%s: %d listed, %d counted, %v; want %d", name, len(found), count, err, tt.want)
		}
	}
	if count, err := c.n.CountUpTo(t.Context(), InstanceFilter{Saga: "voyage"}, 4); count != 4 || err != nil {
		t.Errorf("CountUpTo 4 = %d, %v", count, err)
	}
}
