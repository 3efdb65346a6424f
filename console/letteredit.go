package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/operator"
)

// editKind is the change that edits one letter. The parameters are those of the letter, with payload and headers as they
// were typed; without one of them it stays as it is.
func (c *Console) editKind() *changeKind {
	return &changeKind{name: "edit", maxForm: maxEditForm, parse: func(ctx context.Context, params url.Values) (change, error) {
		search, err := parseLetterSearch(params)
		if err != nil {
			return nil, err
		}
		if len(search.parsed.IDs) != 1 || search.Side != string(operator.Inbox) {
			return nil, badRequest("An edit needs the database, the schema and the id of a message of the inbox.")
		}
		sides, _, err := c.chooseSides(ctx, search)
		if err != nil {
			return nil, err
		}
		if len(sides) != 1 {
			return nil, badRequest("An edit needs the database and the schema of its message.")
		}
		e := &editChange{console: c, side: sides[0], id: search.parsed.IDs[0], notJSON: params.Get("notjson") != ""}
		for name, field := range map[string]**string{"payload": &e.payload, "headers": &e.headers} {
			if !params.Has(name) {
				continue
			}
			text := strings.ReplaceAll(params.Get(name), "\r\n", "\n")
			if !isPlain(text, true) || len(text) > maxEdited {
				return nil, wrongInput("The %s must be text of at most %d bytes, without control characters.", name, maxEdited)
			}
			*field = &text
		}
		return e, nil
	}}
}

// A typedError says what is wrong with what a person typed into a form that can show it again.
type typedError struct{ *pageError }

// Unwrap returns the page for requests without the form.
func (e *typedError) Unwrap() error { return e.pageError }

func wrongInput(format string, args ...any) error {
	return &typedError{badRequest(fmt.Sprintf(format, args...))}
}

// An editChange edits one letter.
type editChange struct {
	console          *Console
	side             letterSide
	id               int64
	payload, headers *string // as typed, with newlines; nil: unchanged
	notJSON          bool
}

func (e *editChange) role() Role { return RoleAdmin }

func (e *editChange) text() changeText {
	return changeText{Verb: "Edit", One: "dead letter", Many: "dead letters", Object: fmt.Sprintf("dead letter %d of %s", e.id, e.side.Label),
		Consequence: "It stays a dead letter until somebody redrives it. Its handler then gets what is stored now, with a header that says who edited it. What it replaces is not kept."}
}

func (e *editChange) places() []*place { return []*place{e.side.place} }

// operation returns the edit of l that makes it what was typed.
func (e *editChange) operation(l *operator.DeadLetter) (operator.Edit, error) {
	var made operator.Edit
	if e.payload != nil && *e.payload != strings.ReplaceAll(string(l.Payload), "\r\n", "\n") {
		if _, why := e.console.editablePayload(l); why != "" {
			return made, wrongInput("The payload cannot be edited here. %s", why)
		}
		made.Payload = []byte(*e.payload)
		var invalid any
		if err := json.Unmarshal(made.Payload, &invalid); err != nil && !e.notJSON {
			return made, wrongInput("The payload is not JSON: %s. Say that it is meant, or change it.", err)
		}
	}
	if e.headers == nil {
		return made, nil
	}
	typed, err := parseHeaders(*e.headers)
	if err != nil {
		return made, err
	}
	if _, why := e.console.editableHeaders(l); why != "" {
		return made, wrongInput("The headers cannot be edited here. %s", why)
	}
	for _, name := range slices.Sorted(maps.Keys(l.Headers)) {
		if _, stays := typed[name]; !stays && isEditableHeader(name, l.Headers[name]) {
			made.Remove = append(made.Remove, name)
		}
	}
	for name, value := range typed {
		if was, found := l.Headers[name]; !found || was != value {
			if made.Set == nil {
				made.Set = map[string]string{}
			}
			made.Set[name] = value
		}
	}
	return made, nil
}

// parseHeaders reads lines of a name, a colon, a space and a value.
func parseHeaders(text string) (map[string]string, error) {
	headers := map[string]string{}
	for i, line := range strings.Split(text, "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		name, value, found := strings.Cut(line, ": ")
		if !found {
			name, found = strings.CutSuffix(line, ":") // without a value
		}
		if !found || strings.TrimSpace(name) != name || name == "" {
			return nil, wrongInput("Line %d of the headers is not a name, a colon, a space and a value: %.60q.", i+1, line)
		}
		if _, twice := headers[name]; twice {
			return nil, wrongInput("The header %.60q is there twice.", name)
		}
		headers[name] = value
	}
	return headers, nil
}

// explainEdit returns an error of package operator about an edit for the form.
func explainEdit(err error) error {
	switch {
	case errors.Is(err, operator.ErrIdentity):
		return wrongInput("Key and scope are the identity of a message that has a step, and cannot be edited: %s", afterLast(err.Error(), ": "))
	case errors.Is(err, operator.ErrInvalidEdit):
		return wrongInput("The edit is refused: %s.", strings.TrimPrefix(err.Error(), operator.ErrInvalidEdit.Error()+": "))
	}
	return err
}

func (e *editChange) preview(ctx context.Context) (p preview, err error) {
	d, err := e.side.read()
	if err != nil {
		return p, err
	}
	was, err := d.GetLimited(ctx, e.id, maxRead)
	e.console.redactLetter(&was)
	if errors.Is(err, operator.ErrNoDeadLetter) || err == nil && was.State != operator.StateDead {
		return p, errNoLetter(e.side.Side, e.id)
	}
	if err != nil {
		return p, err
	}
	made, err := e.operation(&was)
	if err != nil {
		return p, err
	}
	made.By = undecided
	is, err := made.Apply(was, time.Now())
	if err != nil {
		return p, explainEdit(err)
	}
	p.Count, p.Samples = 1, []sample{sampleLetter(e.side, &was)}
	if made.Payload != nil {
		p.Diffs = append(p.Diffs, diffContent("Payload", string(was.Payload), string(is.Payload)))
	}
	if len(made.Set)+len(made.Remove) > 0 {
		p.Diffs = append(p.Diffs, diffContent("Headers", formatHeaders(&was, isEditableHeader), formatHeaders(&is, isEditableHeader)))
	}
	return p, nil
}

// apply edits the letter, unless it has changed since the preview.
func (e *editChange) apply(ctx context.Context, o *applyOptions, _ func(tally)) (tally, error) {
	moment, err := o.momentOf(e.side.place)
	if err != nil {
		return tally{}, errLateSchema
	}
	d, err := e.side.change(o.Actor, o.Why)
	if err != nil {
		return tally{}, err
	}
	was, err := d.GetLimited(ctx, e.id, maxRead)
	if err == nil {
		var made operator.Edit
		if made, err = e.operation(&was); err == nil {
			made.By, made.UnchangedSince = clipBytes(string(o.Actor), maxEditor), moment
			_, _, err = d.Edit(ctx, e.id, made)
		}
	}
	switch {
	case errors.Is(err, operator.ErrNoDeadLetter), errors.Is(err, operator.ErrInvalidEdit): // it has changed, perhaps by this edit
		return tally{Changed: 1}, nil
	case err != nil:
		return tally{}, explainEdit(err)
	}
	return tally{Done: 1}, nil
}

const maxEditor = 120 // bytes of an actor in the header of an edit
