package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/sagamill/sagamill/operator"
)

// runElsewhere is the state of a run that this process does not know: another process runs it, or has run it, or it was
// interrupted by a restart. This process can tell what is left, and do that.
const runElsewhere = "elsewhere"

const (
	// noteAge is how long a process that does not know a run shows it.
	noteAge = 24 * time.Hour

	// maxRunNote is how long a note may be, in bytes: it is in the address. The note of an edit may be longer, and is left out.
	maxRunNote = maxValue

	leftAge = 4 * time.Second
)

// A runNote is what the address of a run says of it: a process that did not start the run shows it by that. It is
// signed, not encrypted: whoever has the address can read the reason and the filter.
type runNote struct {
	Proposal proposal  `json:"proposal"`
	Actor    Actor     `json:"actor"` // who has confirmed it
	Why      string    `json:"why"`
	Rate     float64   `json:"rate"`
	Begun    time.Time `json:"begun"`
	Host     string    `json:"host"` // where it was started
	PID      int       `json:"pid"`
}

// newRunNote returns the note of a run that this process starts, "" if it is too long for an address.
func (c *Console) newRunNote(p *proposal, o *applyOptions) string {
	host, _ := os.Hostname() // "": not known
	text, err := c.signer.signRun(runNote{Proposal: *p, Actor: o.Actor, Why: o.Why, Rate: o.Rate, Begun: time.Now().UTC(), Host: host, PID: os.Getpid()})
	if err != nil || len(text) > maxRunNote {
		return ""
	}
	return text
}

// query returns the address of the run.
func (r *run) query() url.Values {
	q := url.Values{"id": {r.ID}}
	if r.address != "" {
		q.Set("of", r.address)
	}
	return q
}

// readRunElsewhere returns the run of a note, as this process would do it. Its error is a page.
func (c *Console) readRunElsewhere(ctx context.Context, values url.Values) (*run, *runNote, error) {
	note, err := c.signer.readRun(values.Get("of"))
	if err != nil || note.Proposal.ID != values.Get("id") || time.Since(note.Begun) > noteAge {
		return nil, nil, &pageError{Status: http.StatusNotFound, What: "This process does not know this change: it runs in another one, or the console was restarted.",
			Advice: "The journal says what it has done. To do the rest, preview and confirm it again."}
	}
	for _, kind := range c.changeKinds() {
		if kind.name != note.Proposal.Kind {
			continue
		}
		params, err := url.ParseQuery(note.Proposal.Params)
		if err != nil {
			return nil, nil, err
		}
		change, err := kind.parse(ctx, params)
		if err != nil {
			return nil, nil, err
		}
		o := applyOptions{Actor: note.Actor, Why: note.Why, Rate: note.Rate, Moments: note.Proposal.Moments}
		text := change.text()
		return &run{ID: note.Proposal.ID, Title: text.title(note.Proposal.Count), Conditions: text.Conditions, Actor: note.Actor, Why: note.Why, Total: note.Proposal.Count, change: change, options: o, address: values.Get("of")}, note, nil
	}
	return nil, nil, badRequest("There is no such change.")
}

// showRunElsewhere counts the objects that have not changed since the preview.
func (c *Console) showRunElsewhere(ctx context.Context, r *request) (any, error) {
	known, note, err := c.readRunElsewhere(ctx, r.values)
	if err != nil {
		return nil, err
	}
	v := known.snapshot()
	v.State, v.By, v.Begun = runElsewhere, known.Actor, note.Begun
	v.Elsewhere = &elsewhereView{Host: note.Host, PID: note.PID}
	v.Elsewhere.Left, err = c.counts.get(ctx, "run "+known.ID, leftAge, func(ctx context.Context) (int, error) {
		return known.change.left(ctx, &known.options)
	})
	if err != nil {
		v.Problem = c.explainError(ctx, err)
		return v, nil
	}
	v.Tally.Done = max(0, v.Total-v.Elsewhere.Left)
	v.CanResume = r.role >= known.change.role() && v.Elsewhere.Left > 0
	return v, nil
}

// An elsewhereView is about a run that this process does not know.
type elsewhereView struct {
	Host string // where it was started
	PID  int
	Left int // objects that have not changed since the preview
}

// errNotHere refuses to pause what this process does not run.
func errNotHere(note *runNote) *pageError {
	return &pageError{Status: http.StatusConflict, What: fmt.Sprintf("Only the process that runs this change can pause it: it was started in process %d of %s.", note.PID, note.Host),
		Advice: "Reload the page until that process answers, or stop that process: what it has done is committed."}
}

// left counts the objects that have not changed since the preview, and would be changed.
func (d *decideChange) left(ctx context.Context, o *applyOptions) (total int, err error) {
	for _, at := range d.chosen {
		filter := d.filter
		if filter.UnchangedSince, err = o.momentOf(at); err != nil {
			return 0, errLateSchema
		}
		n, err := at.instances()
		if err != nil {
			return 0, err
		}
		seen, err := n.PreviewAll(ctx, filter, d.decision, nil)
		if err != nil {
			return 0, err
		}
		total += seen.Decided
	}
	return total, nil
}

func (l *letterChange) left(ctx context.Context, o *applyOptions) (total int, err error) {
	err = l.eachSide(letterSide.read, func(side letterSide, d *operator.DeadLetters) error {
		filter := l.filter
		if filter.UnchangedSince, err = o.momentOf(side.place); err != nil {
			return errLateSchema
		}
		count, err := d.Count(ctx, filter)
		total += count
		return err
	})
	return total, err
}

func (e *editChange) left(ctx context.Context, o *applyOptions) (int, error) {
	d, err := e.side.read()
	if err != nil {
		return 0, err
	}
	filter := operator.ByID(e.id)
	if filter.UnchangedSince, err = o.momentOf(e.side.place); err != nil {
		return 0, errLateSchema
	}
	return d.Count(ctx, filter)
}
