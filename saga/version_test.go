package saga_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/testing/pgservertest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/saga"
)

// Instances keep the version that they began with, and finish with it.
func TestInstancesKeepTheirVersion(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	v1 := saga.Must(saga.Define("trip", 1, book("flight")))
	v2 := saga.Must(saga.Define("trip", 2, book("flight"), book("hotel")))
	start(p, v1, "old", trip{Item: "x"})
	start(p, v2, "new", trip{Item: "x"})
	p.orchestrate(nil, v2, v1)
	p.participate(p.booking("flight"), p.booking("hotel"))
	p.until("old", saga.StatusCompleted)
	p.until("new", saga.StatusCompleted)
	if old, is := p.effects("old"), p.effects("new"); old != "[flight]" || is != "[flight hotel]" {
		t.Errorf("effects %s and %s", old, is)
	}
}

// A binary that cannot finish what is live does not begin to run.
func TestRunRefusesWhatItCannotFinish(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	v1 := saga.Must(saga.Define("trip", 1, book("flight")))
	changed := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	v2 := saga.Must(saga.Define("trip", 2, book("flight")))
	other := saga.Must(saga.Define("other", 1, book("flight")))
	o := p.orchestrate(nil, v1) // whose plan it registers
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !o.Ready() {
		<-tick.C
	}
	start(p, v1, "k", trip{Item: "x"})
	for name, tt := range map[string]struct {
		plan    saga.Plan
		partial bool
		want    string
	}{
		"without the version":       {v2, false, "trip, version 1, 1 live: the version is not registered"},
		"with other steps":          {changed, false, "trip, version 1, 1 live: its steps have been changed without raising the version"},
		"with other steps, partial": {changed, true, "its steps have been changed"},
		"of another saga":           {other, false, ""},
		"partial":                   {v2, true, ""},
	} {
		sub := p.broker.Subscriber("second")
		second, err := saga.NewOrchestrator(p.db, sub, []saga.Plan{tt.plan}, &saga.Options{Schema: p.schema, Logger: quiet, Partial: tt.partial})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		ctx, stop := contextOf(t)
		go func() { ended <- second.Run(ctx) }()
		for !second.Ready() && len(ended) == 0 {
			<-tick.C
		}
		stop()
		err = <-ended
		if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, saga.ErrUnfinishable) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: Run = %v, want %q", name, err, tt.want)
		}
	}
}

// A manifest tells the person who deploys a binary which instances the binary can finish.
func TestAManifestIsCheckedAgainstWhatIsLive(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	inner := saga.Must(saga.Define("inner", 3, book("flight")))
	v1 := saga.Must(saga.Define("trip", 1, saga.Step[trip]{Name: "in", Do: saga.Nested(inner, func(s *trip) trip { return *s }, nil)}))
	start(p, v1, "k", trip{})
	read := func(plans ...saga.Plan) saga.Manifest {
		data, err := json.Marshal(saga.NewManifest(plans...))
		if err != nil {
			t.Fatal(err)
		}
		m, err := saga.ReadManifest(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for i, tt := range []struct {
		m    saga.Manifest
		want string
	}{
		{read(v1), "inner 3: , trip 1: "},
		{read(inner), "inner 3: , trip 1: the version is not registered"},
		{read(), "inner 3: the version is not registered, trip 1: the version is not registered"},
	} {
		live, err := tt.m.Check(t.Context(), p.db, p.schema)
		var got []string
		for _, v := range live {
			got = append(got, v.Saga+" "+string(rune('0'+v.Version))+": "+v.Problem)
		}
		if text := strings.Join(got, ", "); err != nil || text != tt.want {
			t.Errorf("%d: Check = %s, %v; want %s", i, text, err, tt.want)
		}
	}
	if _, err := saga.ReadManifest(strings.NewReader("no")); err == nil {
		t.Error("a manifest that is none was read")
	}
}

// A plan was changed without a new version, and instances of the changed plan begin while the old plan is
// orchestrated. They wait for an orchestrator that has their plan, and the check names them.
func TestAPlanThatWasChangedIsNotTakenForTheOld(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	old := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	soon := book("hotel")
	soon.Deadline = 20 * time.Millisecond
	swapped := saga.Must(saga.Define("trip", 1, soon, book("flight")))
	o := p.orchestrate(nil, old)
	p.participate(p.booking("flight"), p.booking("hotel"))
	p.await("the old plan is registered: the new one would keep it from that", o.Ready)
	start(p, old, "good", trip{Item: "x"})
	start(p, swapped, "bad", trip{Item: "x"})
	p.until("good", saga.StatusCompleted)
	p.await("the reply waits", func() bool {
		var waits bool
		err := p.db.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM "+p.schema+".parked WHERE state = 'retrying' AND error LIKE '%changed without raising the version%')").Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
		return waits
	})
	p.untilSQL("bad", "status = 'running' AND revision = 0 AND state = '{\"item\":\"x\"}'")
	live, err := saga.NewManifest(old).Check(t.Context(), p.db, p.schema)
	if err != nil || len(live) != 1 || !strings.Contains(live[0].Problem, "changed without raising the version") {
		t.Errorf("Check = %+v, %v; want the changed plan", live, err)
	}
	p.untilSQL("bad", "due_at < clock_timestamp()")
	saga.AwaitTimerPasses(t, o, 2) // the second has begun after the deadline
	p.untilSQL("bad", "tries = 0 AND revision = 0")
	if got := p.effects("bad"); got != "[hotel]" {
		t.Errorf("effects %s, want the first command's alone", got)
	}
}

// lines is a log that tells of each line.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	select {
	case l <- string(line):
	default:
	}
	return len(line), nil
}

// An orchestrator that begins before the database does waits for it.
func TestRunWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	server := pgservertest.New(t)
	if err := migrations.Up(t.Context(), server.URL(), "late"); err != nil {
		t.Fatal(err)
	}
	db := pgtest.Pool(t, server.URL())
	server.Crash()
	said := make(lines, 1)
	o, err := saga.NewOrchestrator(db, inproc.New(nil).Subscriber("orchestrator"), []saga.Plan{saga.Must(saga.Define("trip", 1, book("flight")))},
		&saga.Options{Schema: "late", Logger: slog.New(slog.NewTextHandler(said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.Run(ctx) }()
	select {
	case line := <-said:
		if !strings.Contains(line, "the database is away") {
			t.Errorf("it says %s", line)
		}
	case err := <-ended:
		t.Fatalf("Run = %v", err)
	}
	server.Start(t)
	p := &place{t: t}
	p.await("the orchestrator is ready", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("Run = %v", err)
		default:
		}
		return o.Ready()
	})
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v", err)
	}
}
