package console

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sagamill/sagamill/operator"
)

const (
	runPath  = "run"
	runsPath = "changes"

	maxKeptRuns = 200
)

// The states of a run.
const (
	runActive = "running"
	runPaused = "paused" // by a person, or because the console stops; it can go on
	runDone   = "done"
	runFailed = "failed" // it can go on too: what is done is left alone
)

// A run is a confirmed change. It goes on after the browser has gone, and ends with the process. Its ID is that of the
// form token. Another process shows what is left of it, and can do that: see runelsewhere.go.
type run struct {
	ID, Title  string
	Conditions []condition
	Actor      Actor
	Why        string
	Total      int // objects of the preview
	change     change
	options    applyOptions
	address    string // its note: see runNote; "": none
	mu         sync.Mutex
	state      string
	by         Actor // of the attempt: who has confirmed the change, or has let it go on
	begun      time.Time
	ended      time.Time
	before     tally // of earlier attempts
	tally      tally // of all attempts so far
	problem    *pageError
	stop       context.CancelFunc
}

// A runSet has the runs of a process.
type runSet struct {
	mu       sync.Mutex
	ctx      context.Context // ends when the console stops
	stopRuns context.CancelFunc
	working  sync.WaitGroup
	all      map[string]*run
	order    []string // ids, the oldest first
}

func newRunSet() *runSet {
	ctx, stop := context.WithCancel(context.Background())
	return &runSet{ctx: ctx, stopRuns: stop, all: map[string]*run{}}
}

// start begins a run, by who has confirmed it or lets it go on, unless there is one with its ID, which it returns then.
func (s *runSet) start(c *Console, r *run, by Actor) (*run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.all[r.ID]; known != nil {
		return known, nil
	}
	if err := s.begin(c, r, by); err != nil {
		return nil, err
	}
	s.all[r.ID] = r
	s.order = append(s.order, r.ID)
	s.forgetOld()
	return r, nil
}

// begin starts an attempt of r, by who has confirmed it or has let it go on. The caller holds s.mu.
func (s *runSet) begin(c *Console, r *run, by Actor) error {
	if s.ctx.Err() != nil {
		return &pageError{Status: http.StatusServiceUnavailable, What: "The console is stopping, and nothing has changed.", Advice: "Try again in a minute."}
	}
	if err := s.checkRoom(c); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(s.ctx)
	r.mu.Lock()
	if r.begun.IsZero() {
		r.begun = time.Now()
	}
	r.state, r.stop, r.before, r.problem, r.ended = runActive, stop, r.tally, nil, time.Time{}
	r.by = by
	o := r.options
	o.Actor, o.Why = by, r.Why
	if by != r.Actor {
		o.Why = fmt.Sprintf("%s (confirmed by %s)", r.Why, clipBytes(string(r.Actor), maxEditor))
	}
	r.mu.Unlock()
	s.working.Go(func() {
		defer stop()
		c.runAttempt(ctx, r, &o)
	})
	return nil
}

// checkRoom refuses another attempt while as many changes run as the console may run at once. The caller holds s.mu.
func (s *runSet) checkRoom(c *Console) error {
	var active []string
	for _, id := range s.order {
		if v := s.all[id].snapshot(); v.State == runActive {
			active = append(active, fmt.Sprintf("%s (by %s)", v.Title, v.By))
		}
	}
	if len(active) < c.opts.activeRuns() {
		return nil
	}
	return &pageError{Status: http.StatusServiceUnavailable, What: formatPlural(len(active), "change runs", "changes run") + " already, and nothing has changed. Running: " + strings.Join(active, "; ") + ".",
		Advice: "Wait until one has ended, or pause one.", Link: runsPath, LinkText: "Changes"}
}

// list returns the runs, the newest first.
func (s *runSet) list() []*run {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*run, 0, len(s.order))
	for _, id := range slices.Backward(s.order) {
		all = append(all, s.all[id])
	}
	return all
}

// forgetOld removes the oldest runs that have ended. The caller holds s.mu.
func (s *runSet) forgetOld() {
	for i := 0; len(s.order) > maxKeptRuns && i < len(s.order); {
		if id := s.order[i]; s.all[id].snapshot().State == runActive {
			i++
		} else {
			delete(s.all, id)
			s.order = slices.Delete(s.order, i, i+1)
		}
	}
}

func (s *runSet) find(id string) *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id]
}

// goOn begins another attempt of a run that is paused or has failed. The journal names who has let it go on for what it
// changes from now on.
func (s *runSet) goOn(c *Console, r *run, by Actor) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state := r.snapshot().State; state != runPaused && state != runFailed {
		return nil
	}
	return s.begin(c, r, by)
}

func (s *runSet) stopAll(ctx context.Context) error {
	s.mu.Lock()
	s.stopRuns()
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.working.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// runAttempt applies the change of r until it is done, fails or is paused. A panic of a change ends the run and not the
// process.
func (c *Console) runAttempt(ctx context.Context, r *run, o *applyOptions) {
	var err error
	defer func() {
		if caught := recover(); caught != nil {
			err = fmt.Errorf("console: change panicked: %v", caught)
		}
		c.endAttempt(ctx, r, o, err)
	}()
	c.opts.Logger.InfoContext(ctx, "console: change begins", "change", r.Title, "actor", string(o.Actor), "objects", r.Total, "run", r.ID)
	var t tally
	t, err = r.change.apply(ctx, o, r.note)
	r.note(t)
}

// note keeps the counts of the attempt so far.
func (r *run) note(t tally) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := tally{Done: r.before.Done}
	sum.add(t)
	r.tally = sum
}

func (c *Console) endAttempt(ctx context.Context, r *run, o *applyOptions, err error) {
	var problem *pageError
	state := runDone
	switch {
	case err != nil && ctx.Err() != nil:
		state = runPaused
	case err != nil:
		state, problem = runFailed, c.explainError(context.WithoutCancel(ctx), err)
	}
	r.mu.Lock()
	r.state, r.problem, r.ended = state, problem, time.Now()
	done := r.tally.Done
	r.mu.Unlock()
	c.opts.Logger.InfoContext(context.WithoutCancel(ctx), "console: change "+state, "change", r.Title, "actor", string(o.Actor), "done", done, "run", r.ID)
}

// A runView is what run.html gets.
type runView struct {
	ID, Title, State string
	Conditions       []condition
	Actor            Actor
	By               Actor // of the last attempt
	Why              string
	Total            int
	Tally            tally
	Refusals         []reasonCount
	Begun, Ended     time.Time
	Problem          *pageError
	CanPause         bool
	CanResume        bool
	Address          string         // of its forms
	Query            string         // of its page
	Elsewhere        *elsewhereView // nil: this process knows it
}

// Since returns the beginning for a search of the journal.
func (v *runView) Since() string { return v.Begun.UTC().Format(time.RFC3339) }

func (v *runView) pageTitle() string { return v.Title }
func (v *runView) isFinished() bool {
	return v.State == runDone || v.Elsewhere != nil && v.Problem == nil && v.Elsewhere.Left == 0
}

// Left returns how many objects of the preview have not been looked at.
func (v *runView) Left() int {
	left := v.Total - v.Tally.Done - v.Tally.Changed - v.Tally.Busy
	if v.State == runDone {
		return 0
	}
	return max(0, left)
}

// Moved returns how many objects of the preview had changed, so that the change left them alone.
func (v *runView) Moved() int {
	if v.State == runDone {
		return max(v.Tally.Changed, v.Total-v.Tally.Done-v.Tally.Busy)
	}
	return v.Tally.Changed
}

func (r *run) snapshot() *runView {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runView{ID: r.ID, Title: r.Title, Conditions: r.Conditions, State: r.state, Actor: r.Actor, By: r.by, Why: r.Why, Total: r.Total, Tally: r.tally, Refusals: sortReasons(r.tally.Refused),
		Begun: r.begun, Ended: r.ended, Problem: r.problem, Address: r.address, Query: "?" + r.query().Encode()}
}

// runPages returns the list of runs, and the page of one with its forms that pause it and let it go on.
func (c *Console) runPages() []*page {
	return []*page{{path: runsPath, title: "Changes", inMenu: true, template: "changes.html", show: c.showRuns, live: c.showRuns, blocks: []string{"changes"}}, {path: runPath, title: "Change", template: "run.html", show: c.showRun, live: c.showRun, blocks: []string{"progress"}, post: c.steerRun}}
}

// showRuns lists the runs of this process.
func (c *Console) showRuns(context.Context, *request) (any, error) {
	views := []*runView{}
	for _, r := range c.runs.list() {
		v := r.snapshot()
		c.redactRun(v)
		views = append(views, v)
	}
	return views, nil
}

func (c *Console) showRun(ctx context.Context, r *request) (any, error) {
	found := c.runs.find(r.values.Get("id"))
	if found == nil {
		shown, err := c.showRunElsewhere(ctx, r)
		if v, ok := shown.(*runView); ok {
			c.redactRun(v)
		}
		return shown, err
	}
	v := found.snapshot()
	c.redactRun(v)
	v.Refusals = sortReasons(c.redactRefusals("", v.Tally.Refused))
	may := r.role >= found.change.role()
	v.CanPause, v.CanResume = may && v.State == runActive, may && (v.State == runPaused || v.State == runFailed)
	return v, nil
}

// steerRun pauses a run, or lets it go on.
func (c *Console) steerRun(ctx context.Context, w http.ResponseWriter, r *request) error {
	if err := c.signer.checkPostToken(r.values.Get("token"), r.session, r.actor); err != nil {
		return err
	}
	var note *runNote // of a run that this process does not know
	var err error
	found := c.runs.find(r.values.Get("id"))
	if found == nil {
		if found, note, err = c.readRunElsewhere(ctx, r.values); err != nil {
			return err
		}
	}
	if r.role < found.change.role() {
		return c.errRole(r, found.change.role())
	}
	switch do := r.values.Get("do"); {
	case do == "pause" && note != nil:
		err = errNotHere(note)
	case do == "pause":
		found.mu.Lock()
		found.stop()
		found.mu.Unlock()
		c.opts.Logger.InfoContext(ctx, "console: change is paused", "change", found.Title, "actor", string(r.actor), "run", found.ID)
	case do == "resume" && note != nil:
		found, err = c.runs.start(c, found, r.actor)
	case do == "resume":
		err = c.runs.goOn(c, found, r.actor)
	default:
		err = badRequest("The form does not say pause or resume.")
	}
	if err != nil {
		return err
	}
	return redirect(w, r, runPath, found.query())
}

// readMoments reads the clock of the database of each place.
func readMoments(ctx context.Context, places []*place) (map[string]time.Time, error) {
	moments := map[string]time.Time{}
	for _, p := range places {
		at, err := operator.ReadClock(ctx, p.pool)
		if err != nil {
			return nil, err
		}
		moments[p.Name] = at
	}
	return moments, nil
}

// errLateSchema reports a place that was not there when the change was previewed.
var errLateSchema = &pageError{Status: http.StatusConflict, What: "A schema was added after the preview.", Advice: "Look at the preview again."}

// momentOf returns the moment of a place.
func (o *applyOptions) momentOf(p *place) (time.Time, error) {
	at, known := o.Moments[p.Name]
	if !known {
		return at, errLateSchema
	}
	return at, nil
}
