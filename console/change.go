package console

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A changeKind is one kind of change. All changes go the same way: preview, confirm, apply, progress. See doc.go.
type changeKind struct {
	name    string // change/NAME is its page
	maxForm int64  // bytes of the form that confirms it; 0: maxForm

	// parse reads the parameters of a request. The change of the same parameters is built again for its confirmation. An
	// error is a [pageError].
	parse func(ctx context.Context, params url.Values) (change, error)
}

// A change is something that a person asks for, with all its parameters.
type change interface {
	// role is the role that it needs.
	role() Role

	// text says what it is.
	text() changeText

	// places are those that it changes.
	places() []*place

	// preview says what apply would do now. It changes nothing.
	preview(ctx context.Context) (preview, error)

	// left counts the objects that apply would change now: those that have not changed since the moment of their place.
	left(ctx context.Context, o *applyOptions) (int, error)

	// apply changes those objects that have not changed since the moment of their place, which is before the preview. So a
	// repeated apply leaves alone what an earlier one has changed. It calls progress from time to time, and returns with
	// the error of ctx, between two objects, when ctx ends.
	apply(ctx context.Context, o *applyOptions, progress func(tally)) (tally, error)
}

// A changeText says what a change is.
type changeText struct {
	Verb        string // in the imperative, such as "Retry"
	One, Many   string // what its objects are: "saga" and "sagas"
	Object      string // that of a change of one object that has a name, such as "saga k0001"; else ""
	Conditions  []condition
	Consequence string // what happens then, and what cannot be undone, in a sentence or two
	Final       bool   // it cannot be undone
}

// title returns such as "Retry 12 sagas". The count 0 is left out.
func (t *changeText) title(count int) string {
	switch {
	case t.Object != "":
		return t.Verb + " " + t.Object
	case count == 0:
		return t.Verb + " " + t.Many
	}
	return t.Verb + " " + formatPlural(count, t.One, t.Many)
}

// A condition is one of those that pick the objects of a change.
type condition struct{ Name, Value string }

// listConditions returns the fields of a search that are set, in the order of names.
func listConditions(fields map[string]*string, names ...string) (all []condition) {
	for _, name := range names {
		if value := *fields[name]; value != "" {
			all = append(all, condition{name, value})
		}
	}
	return all
}

// applyOptions say how a change is applied.
type applyOptions struct {
	Actor   Actor
	Why     string
	Rate    float64 // objects per second; 0: no limit
	Moments map[string]time.Time

	databases []*pgxpool.Pool // in which a redrive looks for sagas that have ended
}

// A preview is what a change would do.
type preview struct {
	Count   int            // objects that it would change
	Refused map[string]int // those that it would leave alone, by reason
	Include string         // below the base: the change that would include some of those; "": there is none
	Samples []sample       // the first of those that it would change
	Effects map[string]int // what happens to those that it would change, in words; nil: the same to all
	Diffs   []contentDiff  // what it replaces
	Undo    string         // of one saga: which steps would be undone; "": the change undoes none
	Steps   map[string]int // of many sagas: how many are at each step
	Error   string         // that of the first object, if the change picks them by their errors
}

// A sample is an object that a change would change.
type sample struct{ Place, Name, Note, Link string }

const (
	// maxSamples is how many objects a preview shows.
	maxSamples = 20

	// typedCount is the number of objects from which on a person types the count.
	typedCount = 101

	defaultRate = 50
	minRate     = 0.01
	maxRate     = 10_000
	maxWhy      = 500 // bytes
)

// A tally counts what a change has done so far.
type tally struct {
	Done    int
	Refused map[string]int
	Changed int // objects that changed after the preview
	Busy    int // objects whose rows were locked
}

// add adds the counts of one place.
func (t *tally) add(other tally) {
	t.Done, t.Changed, t.Busy = t.Done+other.Done, t.Changed+other.Changed, t.Busy+other.Busy
	for reason, n := range other.Refused {
		if t.Refused == nil {
			t.Refused = map[string]int{}
		}
		t.Refused[reason] += n
	}
}

// changeKinds lists all kinds.
func (c *Console) changeKinds() []*changeKind {
	return append(c.letterKinds(), c.decideKind(), c.keyKind())
}

// previewPages returns the page of each kind: a GET previews the change, a POST applies it.
func (c *Console) previewPages() (all []*page) {
	for _, kind := range c.changeKinds() {
		all = append(all, &page{
			path: "change/" + kind.name, title: "Preview", template: "change.html", maxForm: kind.maxForm,
			show: func(ctx context.Context, r *request) (any, error) { return c.previewChange(ctx, r, kind) },
			post: func(ctx context.Context, w http.ResponseWriter, r *request) error {
				return c.confirmChange(ctx, w, r, kind)
			},
		})
	}
	return all
}

// A previewView is what change.html gets.
type previewView struct {
	changeText
	Title    string // and the text of the button
	Action   string // the path of the form
	Preview  preview
	Refusals []reasonCount
	Effects  []reasonCount
	Steps    []reasonCount
	Token    string // "": this person cannot confirm it, and Denied says why
	Denied   string
	Typed    bool // the count has to be typed
	Rate     int
	Expires  time.Time
}

func (v *previewView) pageTitle() string { return v.Title }

// showError puts the error of the objects in place of its fingerprint.
func (v *previewView) showError() {
	for i, one := range v.Conditions {
		if one.Name == "fingerprint" && v.Preview.Error != "" {
			v.Conditions[i] = condition{"error like", v.Preview.Error}
		}
	}
}

type reasonCount struct {
	Reason string
	Count  int
}

// sortReasons returns counts by reason, the largest first.
func sortReasons(counts map[string]int) (all []reasonCount) {
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, reasonCount{reason, counts[reason]})
	}
	slices.SortStableFunc(all, func(a, b reasonCount) int { return b.Count - a.Count })
	return all
}

// previewChange reads the clocks, then previews the change, and signs both.
func (c *Console) previewChange(ctx context.Context, r *request, kind *changeKind) (any, error) {
	change, err := kind.parse(ctx, r.values)
	if err != nil {
		return nil, err
	}
	p := proposal{ID: rand.Text(), Kind: kind.name, Params: r.values.Encode(), Expires: time.Now().Add(proposalAge).Unix()}
	if p.Moments, err = readMoments(ctx, change.places()); err != nil {
		return nil, err
	}
	seen, err := change.preview(ctx)
	if err != nil {
		return nil, err
	}
	p.Count = seen.Count
	v := &previewView{changeText: change.text(), Action: "change/" + kind.name, Preview: seen, Refusals: sortReasons(c.redactRefusals("", seen.Refused)), Effects: sortReasons(seen.Effects), Steps: sortReasons(seen.Steps),
		Typed: seen.Count >= typedCount, Rate: defaultRate, Expires: time.Unix(p.Expires, 0)}
	v.Title = v.title(seen.Count)
	v.showError()
	switch {
	case r.role < change.role():
		v.Denied = c.errRole(r, change.role()).What
	case seen.Count > 0:
		v.Token, err = c.signer.signProposal(p, r.session, r.actor)
	}
	return v, err
}

// confirmChange starts the change of a form token and redirects to its progress. A second POST of the token finds the run
// of the first. In another process, or after a restart, it finds nothing left to change: see [change.apply].
func (c *Console) confirmChange(ctx context.Context, w http.ResponseWriter, r *request, kind *changeKind) error {
	p, err := c.signer.readProposal(r.values.Get("token"), r.session, r.actor, time.Now())
	if err != nil {
		return err
	}
	if p.Kind != kind.name {
		return errToken
	}
	params, err := url.ParseQuery(p.Params)
	if err != nil {
		return errToken
	}
	change, err := kind.parse(ctx, params)
	if err != nil {
		return err
	}
	if r.role < change.role() {
		return c.errRole(r, change.role())
	}
	o, err := readConfirmation(r.values, &p)
	if err != nil {
		return err
	}
	o.Actor, o.Moments = r.actor, p.Moments
	text := change.text()
	started, err := c.runs.start(c, &run{ID: p.ID, Title: text.title(p.Count), Conditions: text.Conditions, Actor: r.actor, Why: o.Why, Total: p.Count, change: change, options: *o, address: c.newRunNote(&p, o)}, r.actor)
	if err != nil {
		return err
	}
	return redirect(w, r, runPath, started.query())
}

// readConfirmation reads what a person has filled in.
func readConfirmation(values url.Values, p *proposal) (*applyOptions, error) {
	o := &applyOptions{Why: strings.TrimSpace(values.Get("why"))}
	switch {
	case o.Why == "":
		return nil, badRequest("The reason is missing: the journal shows it to others.")
	case len(o.Why) > maxWhy || !utf8.ValidString(o.Why):
		return nil, badRequest(fmt.Sprintf("The reason has more than %d bytes.", maxWhy))
	}
	if p.Count >= typedCount && strings.TrimSpace(values.Get("count")) != strconv.Itoa(p.Count) {
		return nil, badRequest(fmt.Sprintf("The count is not %d, so nothing has changed.", p.Count))
	}
	rate, err := strconv.ParseFloat(values.Get("rate"), 64)
	if err != nil || !(rate >= minRate && rate <= maxRate) {
		return nil, badRequest(fmt.Sprintf("The rate must be a number between %v and %d.", minRate, maxRate))
	}
	o.Rate = rate
	return o, nil
}
