package operator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// HeaderEdited is set on a message that was edited as a dead letter. It says how often, and
// when and by whom the last time. It stays with the message, so that its handler sees it.
const HeaderEdited = "x-sagamill-edited"

// HeaderTypeWas is set on a message whose type was edited as a dead letter. It is the type as
// received, which still determines its step.
const HeaderTypeWas = "x-sagamill-type-was"

// editedAt is the form of the time in [HeaderEdited]. It has microseconds, so that sqlUnchanged can compare it.
const editedAt = "2006-01-02T15:04:05.000000Z07:00"

// maxEditor is the limit for the name of an editor, in bytes.
const maxEditor = 128

var (
	// ErrIdentity reports an edit of key or scope of a letter whose step has a row: the
	// edit would leave that row behind and lead to another step.
	ErrIdentity = errors.New("operator: key and scope of a letter that has a step are its identity, and cannot be edited")

	// ErrInvalidEdit reports an edit whose result no consumer could use.
	ErrInvalidEdit = errors.New("operator: invalid edit")
)

// An Edit changes a dead letter.
type Edit struct {
	By      string            // the editor; required, default: [Options].By
	Payload []byte            // the new payload; nil: unchanged
	Set     map[string]string // headers to add or replace, including properties such as the type
	Remove  []string          // headers to remove

	// UnchangedSince is a moment by the clock of the database: see [ReadClock]. A letter that has changed since, for example by
	// this edit, is left alone with an [ErrNoDeadLetter]. Default: none is.
	UnchangedSince time.Time
}

func (d *inboxLetters) editLetter(ctx context.Context, id int64, e Edit) (was, is DeadLetter, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	e.By = cmp.Or(e.By, d.by)
	asEditor := *d
	asEditor.by = e.By
	what := map[string]string{}
	err = asEditor.commitBatch(ctx, "dead edit", what, func(tx pgx.Tx) ([]int64, error) {
		if was, is, err = d.editLocked(ctx, tx, id, e); err != nil {
			return nil, err
		}
		maps.Copy(what, e.describeEdit(was, is))
		return []int64{id}, nil
	})
	if err != nil && !errors.Is(err, ErrNoDeadLetter) && !errors.Is(err, ErrIdentity) && !errors.Is(err, ErrInvalidEdit) {
		err = fmt.Errorf("operator: edit dead letter %d: %w", id, sqlschema.Explain(err))
	}
	return was, is, err
}

// editLocked locks a dead letter and edits it.
func (d *inboxLetters) editLocked(ctx context.Context, tx pgx.Tx, id int64, e Edit) (was, is DeadLetter, err error) {
	rows, _ := tx.Query(ctx, d.sql.lock, id, timeOrNil(e.UnchangedSince))
	was, err = pgx.CollectExactlyOneRow(rows, scanInboxLetter)
	if errors.Is(err, pgx.ErrNoRows) {
		return was, is, ErrNoDeadLetter
	}
	var now time.Time
	if err == nil {
		err = tx.QueryRow(ctx, d.sql.readClock, 0, 0).Scan(&now, nil)
	}
	if err == nil {
		is, err = e.Apply(was, now)
	}
	if err != nil {
		return was, is, err
	}
	payload := is.Payload
	if payload == nil {
		payload = []byte{} // the column is not null
	}
	names, values := inbox.HeaderColumns(is.Headers, outbox.PropertyRedelivered)
	_, err = tx.Exec(ctx, d.sql.edit, id, names, values, payload)
	return was, is, err
}

// describeEdit returns e for the journal, which stores neither payloads nor values of headers.
func (e *Edit) describeEdit(was, is DeadLetter) map[string]string {
	pairs := []string{"set", strings.Join(slices.Sorted(maps.Keys(e.Set)), " "), "removed", strings.Join(e.Remove, " ")}
	if e.Payload != nil {
		pairs = append(pairs, "payload_was", formatDigest(was.Payload), "payload", formatDigest(is.Payload))
	}
	return journal.What(pairs...)
}

// formatDigest returns a digest as the command prints it.
func formatDigest(payload []byte) string { return fmt.Sprintf("SHA-256 %x", sha256.Sum256(payload)) }

// Apply returns l as [DeadLetters.Edit] would make it at that time, and changes nothing.
func (e Edit) Apply(l DeadLetter, at time.Time) (DeadLetter, error) {
	if err := e.validate(l); err != nil {
		return l, err
	}
	times := 0
	_, _ = fmt.Sscanf(l.Headers.Get(HeaderEdited), "edit %d", &times) // without the header this is the first edit
	received := typeReceived(l)
	l.Headers = maps.Clone(l.Headers)
	delete(l.Headers, HeaderTypeWas)
	for _, name := range e.Remove {
		delete(l.Headers, name)
	}
	maps.Copy(l.Headers, e.Set)
	if l.Headers.Get(outbox.PropertyType) != received {
		l.Headers.Set(HeaderTypeWas, received)
	}
	l.Headers.Set(HeaderEdited, fmt.Sprintf("edit %d at %s by %s", times+1, at.UTC().Format(editedAt), e.By))
	if e.Payload != nil {
		l.Payload, l.Size = e.Payload, len(e.Payload)
	}
	l.Edited = true
	return l, nil
}

// typeReceived is the type with which l came. Before the first edit HeaderTypeWas is only a
// header of the sender.
func typeReceived(l DeadLetter) string {
	if was, retyped := l.Headers[HeaderTypeWas]; retyped && l.Edited {
		return was
	}
	return l.Headers.Get(outbox.PropertyType)
}

// hasHeader returns a function that reports whether headers has a name.
func hasHeader(headers map[string]string) func(string) bool {
	return func(name string) bool { _, found := headers[name]; return found }
}

func (e Edit) validate(l DeadLetter) error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrInvalidEdit, fmt.Sprintf(format, args...))
	}
	switch {
	case e.By == "" || len(e.By) > maxEditor || !cleantext.Printable(e.By):
		return invalid("By must be 1 to %d printable bytes", maxEditor)
	case e.Payload == nil && len(e.Set) == 0 && !slices.ContainsFunc(e.Remove, hasHeader(l.Headers)):
		return invalid("it changes nothing")
	case len(e.Payload) > outbox.MaxPayload:
		return invalid("Payload has %d bytes, the limit is %d", len(e.Payload), outbox.MaxPayload)
	case len(e.Set)+len(l.Headers) > 2*outbox.MaxHeaders && len(e.Set) > 0:
		return invalid("%d headers, the limit is %d", len(e.Set)+len(l.Headers), 2*outbox.MaxHeaders)
	}
	size := 0
	for name, value := range e.Set {
		size += len(name) + len(value)
		if name == "" || len(name) > outbox.MaxHeaderName {
			return invalid("a header name must be 1 to %d bytes", outbox.MaxHeaderName)
		}
	}
	if size > outbox.MaxHeaderBytes {
		return invalid("headers have %d bytes, the limit is %d", size, outbox.MaxHeaderBytes)
	}
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(e.Set)), e.Remove) {
		switch {
		case l.Key != "" && (name == outbox.HeaderKey || name == outbox.HeaderScope):
			return fmt.Errorf("%w: header %s", ErrIdentity, name)
		case name == HeaderEdited || name == HeaderTypeWas || name == outbox.PropertyRedelivered:
			return invalid("header %s is not for people to set", name)
		}
	}
	return nil
}
