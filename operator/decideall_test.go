package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/saga"
)

// A crowd is a schema with instances that a test puts there: of trip, with the steps flight and hotel.
type crowd struct {
	*fixture
	n *Instances
	m *machine.Machine
}

func newCrowd(t *testing.T) *crowd {
	t.Helper()
	f := newFixture(t)
	n, err := NewInstances(f.pool, &Options{Schema: f.schema, By: "ann", Why: "the queue is back"})
	if err != nil {
		t.Fatal(err)
	}
	n.pause = func(context.Context, time.Duration) error { return nil }
	plan := machine.Plan{Name: "trip", Version: 1, Nodes: []machine.Node{
		{Name: "flight", Kind: machine.Remote, Topic: "flight", Type: "flight", Undo: machine.Remote, UndoTopic: "no-flight", UndoType: "no-flight"},
		{Name: "hotel", Kind: machine.Remote, Topic: "hotel", Type: "hotel"},
	}}
	m, err := machine.Compile(plan)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	f.exec(t, "INSERT INTO {schema}.saga_definition (name, version, hash, plan) VALUES ('trip', 1, 'h', $1)", string(text))
	return &crowd{f, n, m}
}

// at is an instance whose flight is done and whose hotel is in a state.
func at(hotel machine.State) machine.Progress {
	return machine.Progress{Phase: machine.Running, Steps: []machine.Step{
		{State: machine.Done, Attempt: 1}, {State: hotel, Attempt: 1, Message: []byte(`{}`)},
	}}
}

// put stores an instance that began and moved an hour ago.
func (c *crowd) put(t *testing.T, key string, p machine.Progress) {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	status := string(p.Phase)
	switch {
	case p.Stuck():
		status = "stuck"
	case p.Paused:
		status = "paused"
	}
	c.exec(t, `INSERT INTO {schema}.saga (scope, key, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at, ended_at)
		SELECT 'acme', $1, overlay(gen_random_uuid()::text PLACING '7' FROM 15 FOR 1)::uuid, gen_random_uuid(), 1, 'trip', 'h', ago, '{}', $2, $3, ago, CASE WHEN $3 = 'completed' THEN ago END
		FROM (SELECT clock_timestamp() - interval '1 hour' AS ago) AS moment`, key, string(text), status)
}

// journal returns "verb step key" of every decision.
func (c *crowd) journal(t *testing.T) string {
	t.Helper()
	return strings.Join(c.texts(t, "SELECT concat_ws(' ', verb, nullif(step, ''), key, who, why) FROM {schema}.saga_journal ORDER BY id"), "; ")
}

var retryHotel = Decision{Verb: VerbRetry, Step: "hotel"}

// Each instance that takes the decision moves, with an entry of its journal; each other one is counted by its reason. A
// preview says so before, and changes nothing.
func TestDecideAllMovesWhatTakesTheDecision(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.put(t, "a", at(machine.InFlight))
	c.put(t, "b", at(machine.Stuck))
	c.put(t, "c", at(machine.Idle))
	c.put(t, "d", at(machine.InFlight))
	c.put(t, "e", machine.Progress{Phase: machine.Completed, Steps: at(machine.Done).Steps})
	c.put(t, "f", at(machine.InFlight))
	c.put(t, "g", at(machine.InFlight))
	c.put(t, "h", at(machine.InFlight))
	c.exec(t, "UPDATE {schema}.saga SET version = 2 WHERE key = 'd'")
	c.exec(t, "UPDATE {schema}.saga SET started_at = clock_timestamp() + interval '1 hour' WHERE key = 'f'") // begins later
	c.exec(t, "UPDATE {schema}.saga SET updated_at = clock_timestamp() WHERE key = 'g'")
	large := at(machine.InFlight)
	large.Steps[1].Message = []byte(strings.Repeat("x", maxListedProgress))
	c.put(t, "i", large)
	c.exec(t, "UPDATE {schema}.saga SET progress = '[]' WHERE key = 'h'")

	want := Decisions{Decided: 3, Refused: map[string]int{
		"step hotel has not begun": 1, "no orchestrator has registered this version in the schema": 1, "does not fit the definition": 1,
	}}
	filter := InstanceFilter{Silent: time.Minute}
	var seen []string
	got, err := c.n.PreviewAll(t.Context(), filter, retryHotel, func(p DecisionPreview) error {
		seen = append(seen, p.Key+" "+p.Refusal)
		return nil
	})
	if diff := gocmp.Diff(want, got); err != nil || diff != "" || len(seen) != 6 || seen[0] != "a " || seen[2] != "c step hotel has not begun" {
		t.Errorf("PreviewAll: error %v, seen %q, counts (-want +got):\n%s", err, seen, diff)
	}
	if got := c.journal(t); got != "" {
		t.Fatalf("a preview has decided: %s", got)
	}
	got, err = c.n.DecideAll(t.Context(), filter, retryHotel, nil)
	if diff := gocmp.Diff(want, got); err != nil || diff != "" || got.TotalRefused() != 3 {
		t.Errorf("DecideAll: error %v, counts (-want +got):\n%s", err, diff)
	}
	const entry = " ann the queue is back"
	if got := c.journal(t); got != "retry hotel a"+entry+"; retry hotel b"+entry+"; retry hotel i"+entry {
		t.Errorf("the journal has %s", got)
	}
	if n := c.texts(t, "SELECT key FROM {schema}.saga WHERE due_at IS NOT NULL ORDER BY key"); strings.Join(n, " ") != "a b i" {
		t.Errorf("due are %v", n)
	}
	if got, err := c.n.DecideAll(t.Context(), filter, retryHotel, nil); err != nil || got.Decided != 0 {
		t.Errorf("said again it decides about %d, %v", got.Decided, err)
	}
}

// A page ends a batch: at a limited rate it has the instances of a second, and Progress is called after each.
func TestDecideAllGoesPageByPage(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	for i := range 5 {
		c.put(t, fmt.Sprint("k", i), at(machine.InFlight))
	}
	var pauses []time.Duration
	c.n.pause = func(_ context.Context, d time.Duration) error {
		pauses = append(pauses, d)
		return nil
	}
	var told []int
	got, err := c.n.DecideAll(t.Context(), InstanceFilter{}, retryHotel, &DecideOptions{Rate: 2, Progress: func(d Decisions) { told = append(told, d.Decided) }})
	if err != nil || got.Decided != 5 || fmt.Sprint(told) != "[2 4 5]" || fmt.Sprint(pauses) != "[1s 1s]" {
		t.Errorf("DecideAll = %+v, %v; progress %v, pauses %v", got, err, told, pauses)
	}
	ctx, cancel := context.WithCancel(t.Context())
	got, err = c.n.DecideAll(ctx, InstanceFilter{}, retryHotel, &DecideOptions{Rate: 2, Progress: func(Decisions) { cancel() }})
	if !errors.Is(err, context.Canceled) || got.Decided != 2 {
		t.Errorf("ended after a page: %+v, %v", got, err)
	}
}

// An instance that moves after it was read is left alone if the filter does not pick it any more, or if it refuses the
// decision by then. One whose row is locked does not hold up the others.
func TestDecideAllLeavesWhatMovesMeanwhile(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		c.put(t, key, at(machine.InFlight))
	}
	tx, err := c.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	done, err := json.Marshal(at(machine.Done))
	if err != nil {
		t.Fatal(err)
	}
	before := c.n.beforeCommit
	c.n.beforeCommit = func() error { // of a: the page is read
		c.n.beforeCommit = before
		c.exec(t, "UPDATE {schema}.saga SET updated_at = clock_timestamp() WHERE key = 'b'")
		c.exec(t, "DELETE FROM {schema}.saga WHERE key = 'd'")
		c.exec(t, "UPDATE {schema}.saga SET progress = $1 WHERE key = 'e'", string(done))
		c.exec(t, "UPDATE {schema}.saga SET updated_at = clock_timestamp() - interval '30 minutes' WHERE key = 'f'")
		_, err := tx.Exec(t.Context(), "SELECT FROM "+c.schema+".saga WHERE key = 'c' FOR UPDATE")
		return err
	}
	got, err := c.n.DecideAll(t.Context(), InstanceFilter{Silent: time.Minute}, retryHotel, nil)
	if diff := gocmp.Diff(Decisions{Decided: 2, Changed: 3, Busy: 1}, got); err != nil || diff != "" {
		t.Errorf("DecideAll: error %v, counts (-want +got):\n%s", err, diff)
	}
	if got := strings.Join(c.texts(t, "SELECT key FROM {schema}.saga_journal ORDER BY id"), " "); got != "a f" {
		t.Errorf("decided about %s, want a f", got)
	}
}

// Verbs without a step act on many as well, and each takes its own filter.
func TestDecideAllTakesEveryVerb(t *testing.T) {
	t.Parallel()
	for verb, want := range map[Verb]string{
		VerbPause: "paused paused running", VerbResume: "running running running", VerbCancel: "compensating running running",
		VerbReject: "compensating running running", VerbSkip: "completed running running",
	} {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t)
			paused := at(machine.InFlight)
			paused.Paused = true
			d := Decision{Verb: verb}
			filter := InstanceFilter{Key: "a"}
			switch verb {
			case VerbResume:
				filter = InstanceFilter{Status: saga.StatusPaused}
			case VerbReject, VerbSkip:
				d.Step = "hotel"
			}
			c.put(t, "a", at(machine.InFlight))
			c.put(t, "b", paused)
			c.put(t, "c", at(machine.InFlight))
			if verb != VerbPause && verb != VerbResume {
				c.exec(t, "DELETE FROM {schema}.saga WHERE key = 'b'")
				c.put(t, "b", at(machine.InFlight))
			}
			got, err := c.n.DecideAll(t.Context(), filter, d, nil)
			if err != nil || got.Decided != 1 {
				t.Fatalf("DecideAll = %+v, %v", got, err)
			}
			if is := strings.Join(c.texts(t, "SELECT status FROM {schema}.saga ORDER BY key"), " "); is != want {
				t.Errorf("the instances are %s, want %s", is, want)
			}
		})
	}
}

func TestDecideAllRefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	for name, tt := range map[string]struct {
		filter  InstanceFilter
		d       Decision
		rate    float64
		invalid bool
	}{
		"ended":        {InstanceFilter{Status: saga.StatusCompleted}, retryHotel, 0, true},
		"negative age": {InstanceFilter{Older: -1}, retryHotel, 0, true},
		"rate":         {InstanceFilter{}, retryHotel, -1, true},
		"no step":      {InstanceFilter{}, Decision{Verb: VerbSkip}, 0, false},
	} {
		_, err := c.n.DecideAll(t.Context(), tt.filter, tt.d, &DecideOptions{Rate: tt.rate})
		if err == nil || errors.Is(err, ErrInvalid) != tt.invalid {
			t.Errorf("%s: DecideAll = %v", name, err)
		}
	}
	if _, err := c.n.PreviewAll(t.Context(), InstanceFilter{}, Decision{}, nil); err == nil {
		t.Error("PreviewAll without a verb = nil error")
	}
	c.put(t, "a", at(machine.InFlight))
	stop := errors.New("enough")
	if _, err := c.n.PreviewAll(t.Context(), InstanceFilter{}, retryHotel, func(DecisionPreview) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("PreviewAll = %v, want the error of each", err)
	}
}

// Reasons that name something of each instance do not fill the memory.
func TestReasonsOfRefusalsAreLimited(t *testing.T) {
	t.Parallel()
	var d Decisions
	for i := range 3 * maxReasons {
		d.addRefusal(fmt.Sprint("reason ", i))
		d.addRefusal("reason 0")
	}
	if len(d.Refused) != maxReasons || d.Refused["reason 0"] != 3*maxReasons+1 || d.Refused[otherReasons] != 2*maxReasons+1 || d.TotalRefused() != 6*maxReasons {
		t.Errorf("%d reasons, %v", len(d.Refused), d.Refused)
	}
	nested := fmt.Errorf("%w: step stay is the saga stay, which has not ended: decide about that, at the path 2.1", ErrRefused)
	if got := classifyRefusal(nested); got != "step stay is the saga stay, which has not ended" {
		t.Errorf("classifyRefusal = %q", got)
	}
}

// A page of a large table is read along an index, not by a look at every row.
func TestAPageOfDecisionsIsReadByIndex(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.NewSchema(t)
	f := &fixture{pool: pool, schema: schema}
	f.exec(t, `INSERT INTO {schema}.saga (scope, key, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at, ended_at)
		SELECT 'acme', g::text, gen_random_uuid(), gen_random_uuid(), 1, 'trip', 'h', now(), '{}', '{}', CASE WHEN ended THEN 'completed' ELSE 'running' END, now(), CASE WHEN ended THEN now() END
		FROM (SELECT g, g % 100 > 0 AS ended FROM generate_series(1, 20000) AS g) AS made`)
	f.exec(t, "ANALYZE {schema}.saga")
	var lines []string
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
		args, err := (&InstanceFilter{Live: true, Silent: time.Minute}).instanceArgs(saga.Address{})
		if err != nil {
			return err
		}
		args[0] = pgx.QueryExecModeDescribeExec
		rows, _ := tx.Query(t.Context(), "EXPLAIN (COSTS OFF) "+newInstanceQueries(schema).pick, append(args, batchSize, time.Now(), maxListedProgress)...)
		lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if plan := strings.Join(lines, "\n"); err != nil || !strings.Contains(plan, "saga_live") || strings.Contains(plan, "Seq Scan") {
		t.Errorf("error %v; the plan:\n%s", err, plan)
	}
}
