package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/operator"
)

// letterPage is the page of one letter.
func (c *Console) letterPage() *page {
	return &page{path: "letter", title: "Letter", template: "letter.html", show: c.showLetter}
}

// A letterPageView is what letter.html gets.
type letterPageView struct {
	letterRow
	Several    bool
	Dead       bool
	Payload    string
	Note       string // that the payload is not shown, or not all of it
	Whole      string // the command that prints all of it
	Headers    string
	HeadersCut bool
	Outcome    operator.Outcome // of a redrive; "": it is not dead
	Says       string           // the outcome in words
	Steps      []operator.StepRow
	Letters    []letterRow // the others of its saga
	Horizon    time.Time
	Saga       string // the query of the page of its saga; "": it has no key
	Group      string // the query of its group
	TraceURL   string
	Verbs      []letterVerb
	Edit       string // the query of the form; "": it cannot be edited
	Changes    []journalRow
}

func (v *letterPageView) pageTitle() string {
	return fmt.Sprintf("Message %d of the %s", v.ID, v.Side)
}

// findLetter returns the side and the letter that the values name.
func (c *Console) findLetter(ctx context.Context, search *letterSearch) (side letterSide, l operator.DeadLetter, err error) {
	if len(search.parsed.IDs) != 1 || search.Side == "" {
		return side, l, badRequest("The address does not name a message: it needs database, schema, side and id.")
	}
	sides, _, err := c.chooseSides(ctx, search)
	if err != nil {
		return side, l, err
	}
	if len(sides) != 1 {
		return side, l, badRequest("The address does not name one schema: it needs database and schema.")
	}
	side = sides[0]
	d, err := side.read()
	if err == nil {
		l, err = d.GetLimited(ctx, search.parsed.IDs[0], maxRead)
		c.redactLetter(&l)
	}
	if errors.Is(err, operator.ErrNoDeadLetter) {
		err = errNoLetter(side.Side, search.parsed.IDs[0])
	}
	return side, l, err
}

func (c *Console) showLetter(ctx context.Context, r *request) (any, error) {
	search, err := parseLetterSearch(r.values)
	if err != nil {
		return nil, err
	}
	side, l, err := c.findLetter(ctx, search)
	if err != nil {
		return nil, err
	}
	v := &letterPageView{letterRow: letterRow{l, side.place}, Several: len(c.databases) > 1, Dead: l.State == operator.StateDead}
	c.showPayload(v)
	v.Headers, v.HeadersCut = c.shownHeaders(&l)
	v.TraceURL = c.traceURL(l.Headers["traceparent"])
	one := &letterSearch{Database: side.Database, Schema: side.Schema, Side: search.Side, ID: search.ID}
	v.Verbs = one.verbsOf(l.State)
	if v.Dead && l.Side == operator.Inbox {
		v.Edit = one.with()
	}
	step := l.Step
	if step == "" {
		step = withoutStep
	}
	like := &letterSearch{Database: side.Database, Schema: side.Schema, Side: search.Side}
	v.Group = like.with("topic", l.Topic, "step", step, "reason", string(l.Reason), "fingerprint", l.Fingerprint, "state", map[bool]string{true: "", false: string(l.State)}[v.Dead])
	if v.Dead {
		if err := v.predict(ctx, side, c.pools()); err != nil {
			return nil, err
		}
	}
	if v.Changes, err = c.listChanges(ctx, side.place, side.Side, []int64{l.ID}); err != nil {
		return nil, err
	}
	return v, c.locateLetter(ctx, v, side)
}

// showPayload fills the payload. A hook that redacts gets nothing that is cut off.
func (c *Console) showPayload(v *letterPageView) {
	data, cut := []byte(nil), false
	switch complete := len(v.DeadLetter.Payload) == v.Size; {
	case complete, c.opts.Redact == nil:
		data, cut = c.redact(Content{Kind: KindPayload, Name: v.Topic, Data: v.DeadLetter.Payload})
		v.Payload = formatContent(data, cut || !complete)
		if !cut && complete {
			return
		}
		v.Note = fmt.Sprintf("Only the first %s of %s are shown.", formatBytes(int64(len(data))), formatBytes(int64(v.Size)))
	default:
		v.Note = noteTooLarge(v.Size)
	}
	command := map[operator.Side]string{operator.Inbox: "dead show", operator.Outbox: "outbox dead show"}[v.Side]
	v.Whole = fmt.Sprintf("sagamill %s%s -id %d -payload", command, flagsOf(v.Place, len(c.databases)), v.ID)
}

// predict reads what a redrive would do with the letter.
func (v *letterPageView) predict(ctx context.Context, side letterSide, databases []*pgxpool.Pool) error {
	d, err := side.read()
	if err != nil {
		return err
	}
	var opts *operator.PreviewOptions // the outbox has none
	if side.Side == operator.Inbox {
		opts = &operator.PreviewOptions{Databases: databases}
	}
	_, err = d.Preview(ctx, operator.ByID(v.ID), opts, func(seen operator.Preview) error {
		v.Outcome, v.Says = seen.Outcome, describePreview(side.Side, &seen)
		return nil
	})
	return err
}

// locateLetter reads where the steps of the saga are. Only an inbox says it; the outbox of another service has no steps.
func (c *Console) locateLetter(ctx context.Context, v *letterPageView, side letterSide) error {
	if v.Key == "" {
		return nil
	}
	v.Saga, _ = buildQuery("database", side.Database, "schema", side.Schema, "scope", v.Scope, "key", v.Key) // pairs
	locator, err := operator.NewLocator(&operator.Options{Schema: side.Schema})
	if err != nil {
		return err
	}
	begin := fmt.Sprintf("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = %d", max(1, side.timeout.Milliseconds()))
	var found operator.InboxRows
	err = pg.NewOwn(side.pool).InTx(ctx, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) (err error) {
		found, err = locator.Inbox(ctx, tx, operator.LocateFilter{Scope: v.Scope, Key: v.Key})
		return err
	})
	if isWithoutTable(err) {
		return nil
	}
	v.Steps, v.Horizon = found.Steps, found.Horizon
	for _, l := range c.redactLetters(found.Letters) {
		if l.ID != v.ID || v.Side != operator.Inbox {
			v.Letters = append(v.Letters, letterRow{l, side.place})
		}
	}
	return err
}

// Own reports whether a row of the inbox is that of the letter.
func (v *letterPageView) Own(s operator.StepRow) bool {
	return s.Scope == v.Scope && s.Key == v.Key && s.Step == v.Step && s.N == v.N
}

// headersOf returns the headers of a letter, also those of the outbox.
func headersOf(l *operator.DeadLetter) (map[string]string, error) {
	if l.Side == operator.Inbox {
		return l.Headers, nil
	}
	headers := map[string]string{}
	if len(l.HeadersJSON) == 0 {
		return headers, nil
	}
	var stored map[string]any
	if err := json.Unmarshal(l.HeadersJSON, &stored); err != nil {
		return nil, err
	}
	for name, value := range stored {
		headers[name] = fmt.Sprint(value)
	}
	return headers, nil
}

// shownHeaders returns what the page shows of the headers of l, and whether they are longer. A hook gets them as JSON, as it
// does those of messages.
func (c *Console) shownHeaders(l *operator.DeadLetter) (text string, cut bool) {
	headers, err := headersOf(l)
	if err != nil {
		headers = map[string]string{"(unreadable)": string(l.HeadersJSON)}
	}
	if len(headers) == 0 {
		return "", false
	}
	data, cut := c.redact(Content{Kind: KindHeaders, Name: l.Topic, Data: marshalHeaders(headers)})
	shown := map[string]string{}
	if cut || json.Unmarshal(data, &shown) != nil {
		return formatContent(data, cut), cut
	}
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(shown)) {
		fmt.Fprintf(&lines, "%s: %s\n", name, shown[name])
	}
	return visibleLines(lines.String()), false
}

func marshalHeaders(headers map[string]string) []byte {
	data, _ := json.Marshal(headers) // texts can be encoded
	return data
}

// formatHeaders returns the headers of l as lines of name and value, in the order of their names. keep picks them; nil
// picks all.
func formatHeaders(l *operator.DeadLetter, keep func(name, value string) bool) string {
	headers, err := headersOf(l)
	if err != nil {
		return string(l.HeadersJSON)
	}
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if keep == nil || keep(name, headers[name]) {
			fmt.Fprintf(&lines, "%s: %s\n", name, headers[name])
		}
	}
	return lines.String()
}

// formatContent returns a payload for people: JSON in lines, text as it is, other bytes in hexadecimal. What is cut is not
// parsed.
func formatContent(data []byte, cut bool) string {
	if !cut {
		data = indentJSON(data)
	}
	for cut && len(data) > 0 && !utf8.Valid(data[max(0, len(data)-utf8.UTFMax):]) && utf8.Valid(data[:len(data)-1]) {
		data = data[:len(data)-1] // the end of a cut is within a character
	}
	if utf8.Valid(data) {
		return visibleLines(string(data))
	}
	return fmt.Sprintf("%d bytes that are not text:\n% x", len(data), data[:min(len(data), maxHex)])
}

// maxHex is how many bytes of a payload that is not text a page shows.
const maxHex = 1024

// isPlain reports whether a form can show text and give it back unchanged.
func isPlain(text string, lines bool) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return unicode.IsControl(r) && !(lines && (r == '\n' || r == '\t'))
	})
}

// A letterVerb is a change of letters, as the console offers it.
type letterVerb struct {
	Kind, Label string
	Query       string
	Fields      map[string][]string
}

var letterVerbLabels = map[string]string{"redrive": "Redrive", "discard": "Discard", "retry": "Retry now", "bury": "Bury"}

// verbs returns the changes of all that the search picks; none if it picks everything.
func (s *letterSearch) verbs() []letterVerb {
	if !s.narrows() {
		return nil
	}
	return s.verbsOf(s.state())
}

// verbsOf returns the changes of the messages in a state. Only a step retries; the relay publishes a refused message
// again by itself.
func (s *letterSearch) verbsOf(state operator.State) (all []letterVerb) {
	kinds := []string{"redrive", "discard"}
	switch {
	case state == operator.StateRetrying && s.Side == string(operator.Outbox):
		kinds = []string{"bury"}
	case state == operator.StateRetrying:
		kinds = []string{"retry", "bury"}
	}
	for _, kind := range kinds {
		all = append(all, letterVerb{Kind: kind, Label: letterVerbLabels[kind], Query: s.with(), Fields: s.Query()})
	}
	return all
}

// outcomeTexts say what a redrive does with a letter.
var outcomeTexts = map[operator.Outcome]string{
	operator.OutcomeRun:           "Its handler is entered again.",
	operator.OutcomeNothingToUndo: "It is a compensation whose action has not run: the action never runs, and nothing is undone.",
	operator.OutcomeWaits:         "It is a compensation that waits until its action, which is retrying or is redriven with it, has run.",
	operator.OutcomeActionDead:    "It becomes a dead letter again, because its action is one: redrive the action too.",
	operator.OutcomeUndecodable:   "It becomes a dead letter again, because it cannot be read: edit it first.",
	operator.OutcomeUnread:        "A consumer of its topic reads it again; only the consumer knows whether it can.",
	operator.OutcomeDuplicate:     "It is removed: its step is done, or another copy will do it.",
	operator.OutcomeSuperseded:    "It is removed: its compensation came first.",
	operator.OutcomeKeyReused:     "It stays a dead letter: its key was used for another payload.",
	operator.OutcomeTooOld:        "It stays a dead letter: it is older than what the inbox remembers, so its step may have run. An admin can force its redrive.",
	operator.OutcomeSagaEnded:     "It stays a dead letter: its saga has ended, and nobody would undo what its handler does.",
	operator.OutcomeBusy:          "It stays a dead letter: its step is locked, for example by its handler.",
}

// describePreview says what a redrive would do with a letter.
func describePreview(side operator.Side, p *operator.Preview) string {
	if p.Ended != "" {
		return fmt.Sprintf("Its saga has ended: it is %s. Nobody would undo what the handler does, so discard the message.", p.Ended)
	}
	text := describeOutcome(side, p.Outcome)
	if side == operator.Outbox {
		text += " The message is not edited, because its transaction has committed it. If the broker can never take it, discard it."
	}
	return text
}

func describeOutcome(side operator.Side, outcome operator.Outcome) string {
	if side == operator.Outbox {
		return "The relay publishes it again."
	}
	if text := outcomeTexts[outcome]; text != "" {
		return text
	}
	return string(outcome)
}

// editPage is the form that edits a letter of the inbox. A POST previews the edit.
func (c *Console) editPage() *page {
	return &page{path: "letter/edit", title: "Edit letter", template: "letteredit.html", maxForm: maxEditForm, longValues: []string{"payload", "headers"},
		show: c.showEdit, post: c.previewEdit}
}

const (
	// maxEditForm limits a form with a payload, and that of its confirmation: the token has the payload, encoded twice.
	maxEditForm = 1 << 20

	// maxEdited limits a payload that is edited in a form.
	maxEdited = 64 << 10
)

// An editView is what letteredit.html gets.
type editView struct {
	letterRow
	Payload      string
	NoPayload    string // why the form does not have the payload; "": it has
	Headers      string
	NoHeaders    string
	Fixed        []string // headers that the form does not have
	NotJSON      bool     // a payload that is no JSON is meant
	Problem      string   // what is wrong with what was typed
	Token        string
	Fields       map[string][]string
	IdentityNote bool
}

func (v *editView) pageTitle() string { return fmt.Sprintf("Edit message %d", v.ID) }

// newEditView returns the form with the letter as it is.
func (c *Console) newEditView(ctx context.Context, r *request) (*editView, error) {
	if r.role < RoleAdmin {
		return nil, c.errRole(r, RoleAdmin)
	}
	search, err := parseLetterSearch(r.values)
	if err != nil {
		return nil, err
	}
	side, l, err := c.findLetter(ctx, search)
	if err != nil {
		return nil, err
	}
	if l.Side != operator.Inbox || l.State != operator.StateDead {
		return nil, &pageError{Status: http.StatusConflict, What: "Only a dead letter of the inbox can be edited.", Advice: "Bury a retrying message first. A message of the outbox cannot be edited."}
	}
	one := &letterSearch{Database: side.Database, Schema: side.Schema, Side: search.Side, ID: search.ID}
	v := &editView{letterRow: letterRow{l, side.place}, Token: c.signer.postToken(r.session, r.actor), Fields: one.Query(), IdentityNote: l.Key != ""}
	v.Payload, v.NoPayload = c.editablePayload(&l)
	v.Headers, v.NoHeaders = c.editableHeaders(&l)
	for _, name := range slices.Sorted(maps.Keys(l.Headers)) {
		if !isEditableHeader(name, l.Headers[name]) {
			v.Fixed = append(v.Fixed, name)
		}
	}
	return v, nil
}

// editablePayload returns the payload of l for a form, or why the form does not have it.
func (c *Console) editablePayload(l *operator.DeadLetter) (editable, why string) {
	if len(l.Payload) < l.Size { // it is cut off: nothing may be stored in its place by mistake
		return "", fmt.Sprintf("It has %s, and a form takes %s.", formatBytes(int64(l.Size)), formatBytes(maxEdited))
	}
	return c.editableText(Content{Kind: KindPayload, Name: l.Topic, Data: l.Payload}, string(l.Payload))
}

// editableHeaders returns the headers of l for a form, in lines.
func (c *Console) editableHeaders(l *operator.DeadLetter) (editable, why string) {
	return c.editableText(Content{Kind: KindHeaders, Name: l.Topic, Data: marshalHeaders(l.Headers)}, formatHeaders(l, isEditableHeader))
}

// editableText returns the text for a form, or why the form does not have it. content is what a hook could redact of it.
func (c *Console) editableText(content Content, text string) (editable, why string) {
	original := bytes.Clone(content.Data)
	shown, cut := c.redact(content)
	switch {
	case cut || len(text) > maxEdited:
		return "", fmt.Sprintf("It is larger than a form takes, which is %s.", formatBytes(int64(min(maxEdited, c.opts.MaxContent))))
	case !bytes.Equal(shown, original):
		return "", "It is redacted."
	case !isPlain(strings.ReplaceAll(text, "\r\n", "\n"), true):
		return "", "It has bytes that are not text."
	}
	return text, ""
}

// propertyRedelivered is a property of a delivery, and not stored.
const propertyRedelivered = "redelivered"

// isEditableHeader reports whether a line of a form can have a header. The package operator sets some itself.
func isEditableHeader(name, value string) bool {
	return isPlain(name, false) && isPlain(value, false) && name != "" && !strings.Contains(name, ": ") && strings.TrimSpace(name) == name &&
		name != operator.HeaderEdited && name != operator.HeaderTypeWas && name != propertyRedelivered
}

func (c *Console) showEdit(ctx context.Context, r *request) (any, error) {
	return c.newEditView(ctx, r)
}

// previewEdit shows what the edit of a form changes, with the form token that makes it. If something is wrong with what
// was typed, the form says so and keeps it.
func (c *Console) previewEdit(ctx context.Context, w http.ResponseWriter, r *request) error {
	if err := c.signer.checkPostToken(r.values.Get("token"), r.session, r.actor); err != nil {
		return err
	}
	r.values.Del("token")
	v, err := c.newEditView(ctx, r)
	if err != nil {
		return err
	}
	kind := c.editKind()
	preview, err := c.previewChange(ctx, r, kind)
	var wrong *typedError
	if errors.As(err, &wrong) {
		v.Problem, v.Payload, v.Headers, v.NotJSON = wrong.What, r.values.Get("payload"), r.values.Get("headers"), r.values.Get("notjson") != ""
		return c.writePage(w, r, r.page, http.StatusBadRequest, v)
	}
	if err != nil {
		return err
	}
	return c.writePage(w, r, c.pages["change/"+kind.name], http.StatusOK, preview)
}
