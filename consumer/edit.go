package consumer

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

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// HeaderEdited is set on a message that was edited as a dead letter: how often,
// and when and by whom for the last time. It goes with the message, so that its
// handler can see it, and whoever looks at it should it die again.
const HeaderEdited = "x-sagamill-edited"

// HeaderTypeWas is set on a message whose type was edited as a dead letter: the type
// with which it came. Its step is that one's.
const HeaderTypeWas = "x-sagamill-type-was"

// maxBy is how many bytes the name of an editor may have.
const maxBy = 128

var (
	// ErrIdentity reports an edit of the key or the scope of a letter whose step
	// has them in its row. That row would be left behind, and another step taken.
	ErrIdentity = errors.New("consumer: key and scope of a letter that has a step are its identity, and cannot be edited")

	// ErrInvalidEdit reports an edit that would store what no consumer could use.
	ErrInvalidEdit = errors.New("consumer: invalid edit")
)

// An Edit is what is to be changed of a dead letter.
type Edit struct {
	By      string            // who changes it; required, unless [DeadLetters.As] says it
	Payload []byte            // what it says from now on; nil: what it says
	Set     map[string]string // headers to add or replace, properties such as the type among them
	Remove  []string          // headers to remove
}

// Edit changes a dead letter's payload and headers, and returns it as it was and as
// it is. It stays a dead letter: see [DeadLetters.Redrive].
//
// For its step it remains the message that it was: its digest stays that of the
// payload as it first came, so that neither it nor a late copy of the original is
// taken for a reused key. Of two edits at once the later one sees the earlier one's
// headers, and its payload wins. The errors are [ErrNoDeadLetter], [ErrIdentity]
// and [ErrInvalidEdit]; nothing has changed then.
func (d *DeadLetters) Edit(ctx context.Context, id int64, e Edit) (was, is DeadLetter, err error) {
	ctx, cancel := context.WithTimeout(ctx, letterTimeout)
	defer cancel()
	e.By = cmp.Or(e.By, d.operator.By)
	err = d.inTx(ctx, func(tx pgx.Tx) (err error) {
		rows, _ := tx.Query(ctx, d.sql.lock, id)
		was, err = pgx.CollectExactlyOneRow(rows, scanLetter)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNoDeadLetter
		}
		var now time.Time
		if err == nil {
			err = tx.QueryRow(ctx, d.sql.readClock, 0, 0).Scan(&now, nil)
		}
		if err == nil {
			is, err = e.Apply(was, now)
		}
		if err != nil {
			return err
		}
		names, values := headers(is.Headers)
		if _, err = tx.Exec(ctx, d.sql.edit, id, names, values, bytesOf(is.Payload)); err != nil {
			return err
		}
		by := d.As(outbox.Operator{By: e.By, Why: d.operator.Why})
		return by.note(ctx, tx, "dead edit", e.what(was, is), []int64{id})
	})
	if err != nil && !errors.Is(err, ErrNoDeadLetter) && !errors.Is(err, ErrIdentity) && !errors.Is(err, ErrInvalidEdit) {
		err = fmt.Errorf("consumer: edit dead letter %d: %w", id, sqlschema.Explain(err))
	}
	return was, is, err
}

// what is e for the journal, which keeps neither payloads nor what headers say.
func (e *Edit) what(was, is DeadLetter) map[string]string {
	pairs := []string{"set", strings.Join(slices.Sorted(maps.Keys(e.Set)), " "), "removed", strings.Join(e.Remove, " ")}
	if e.Payload != nil {
		pairs = append(pairs, "payload_was", digestText(was.Payload), "payload", digestText(is.Payload))
	}
	return journal.What(pairs...)
}

// digestText is how the command prints a digest.
func digestText(payload []byte) string { return fmt.Sprintf("SHA-256 %x", sha256.Sum256(payload)) }

// Apply returns l as Edit would make it at that time, and changes nothing.
func (e Edit) Apply(l DeadLetter, at time.Time) (DeadLetter, error) {
	if err := e.check(l); err != nil {
		return l, err
	}
	times := 0
	_, _ = fmt.Sscanf(l.Headers.Get(HeaderEdited), "edit %d", &times) // of what is none, this is the first
	came := typeWas(l)
	l.Headers = maps.Clone(l.Headers)
	delete(l.Headers, HeaderTypeWas)
	for _, name := range e.Remove {
		delete(l.Headers, name)
	}
	maps.Copy(l.Headers, e.Set)
	if l.Headers.Get(outbox.PropertyType) != came {
		l.Headers.Set(HeaderTypeWas, came)
	}
	l.Headers.Set(HeaderEdited, fmt.Sprintf("edit %d at %s by %s", times+1, at.UTC().Format(time.RFC3339), e.By))
	if e.Payload != nil {
		l.Payload, l.Size = e.Payload, len(e.Payload)
	}
	l.Edited = true
	return l, nil
}

// typeWas is the type with which l came. Before its first edit, a header that says so
// is somebody else's.
func typeWas(l DeadLetter) string {
	if was, retyped := l.Headers[HeaderTypeWas]; retyped && l.Edited {
		return was
	}
	return l.Headers.Get(outbox.PropertyType)
}

// has returns a function that reports whether metadata has a header.
func has(metadata message.Metadata) func(string) bool {
	return func(name string) bool { _, found := metadata[name]; return found }
}

func (e Edit) check(l DeadLetter) error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrInvalidEdit, fmt.Sprintf(format, args...))
	}
	switch {
	case e.By == "" || len(e.By) > maxBy || !cleantext.Printable(e.By):
		return invalid("By must be 1 to %d printable bytes", maxBy)
	case e.Payload == nil && len(e.Set) == 0 && !slices.ContainsFunc(e.Remove, has(l.Headers)):
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
