package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/operator"
)

const (
	// maxContents is how many messages and how many letters of a saga a page shows with their content: the last ones.
	maxContents = 40

	// maxRead is how many bytes of a payload are read. Of a longer one Options.Redact gets nothing.
	maxRead = 1 << 20
)

// A messageView is a message of an outbox with its content.
type messageView struct {
	operator.OutboxMessage
	Where       string
	ContentType string
	Headers     *contentView
	Payload     *contentView
	TraceURL    string
	Link        string // below the base: the page of the message, or of the letter that it has become
}

// Bytes returns the size of the payload.
func (m *messageView) Bytes() int64 { return int64(m.Size) }

// A letterView is a message that a step could not handle, with its failures.
type letterView struct {
	operator.DeadLetter
	Where    string
	Text     string // the error
	Trace    string // the stack
	Headers  *contentView
	Payload  *contentView
	TraceURL string
	Link     string // the query of its page
}

// addContents reads what the last messages and letters of a saga carry.
func (c *Console) addContents(ctx context.Context, v *sagaView, s *sagaReading) error {
	for _, part := range s.Parts {
		for i := range part.Outbox.Messages {
			v.Messages = append(v.Messages, messageView{OutboxMessage: part.Outbox.Messages[i], Where: part.Name})
		}
		for i := range part.Inbox.Letters {
			v.Letters = append(v.Letters, letterView{DeadLetter: part.Inbox.Letters[i], Where: part.Name})
		}
	}
	slices.SortStableFunc(v.Messages, func(a, b messageView) int { return a.CreatedAt.Compare(b.CreatedAt) })
	slices.SortStableFunc(v.Letters, func(a, b letterView) int { return a.LastAt.Compare(b.LastAt) })
	left := max(0, len(v.Messages)-maxContents) + max(0, len(v.Letters)-maxContents)
	v.LeftOut = left
	v.Messages, v.Letters = v.Messages[max(0, len(v.Messages)-maxContents):], v.Letters[max(0, len(v.Letters)-maxContents):]
	for _, part := range s.Parts {
		if err := c.readMessages(ctx, s.places[part.Name], v.Messages); err != nil {
			return err
		}
	}
	for i := range v.Letters {
		if err := c.readLetter(ctx, s.places[v.Letters[i].Where], &v.Letters[i]); err != nil {
			return err
		}
	}
	for _, part := range s.Parts {
		changes, err := c.listLetterChanges(ctx, s.places[part.Name], part)
		if err != nil {
			return err
		}
		v.Changes = append(v.Changes, changes...)
	}
	slices.SortStableFunc(v.Changes, func(a, b journalRow) int { return a.At.Compare(b.At) })
	return nil
}

// listLetterChanges returns what people have done to the parked messages of a saga in a place.
func (c *Console) listLetterChanges(ctx context.Context, p *place, part *operator.SagaPart) ([]journalRow, error) {
	if p == nil {
		return nil, nil
	}
	var ids []int64
	for i := range part.Inbox.Letters {
		ids = append(ids, part.Inbox.Letters[i].ID)
	}
	return c.listChanges(ctx, p, operator.Inbox, ids)
}

// readMessages reads the content of those messages that a place has.
func (c *Console) readMessages(ctx context.Context, p *place, messages []messageView) error {
	byID := map[int64]*messageView{}
	var ids []int64
	for i := range messages {
		if m := &messages[i]; p != nil && m.Where == p.Label {
			byID[m.ID] = m
			ids = append(ids, m.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	l, err := operator.NewLocator(&operator.Options{Schema: p.Schema})
	if err != nil {
		return err
	}
	var contents []operator.MessageContent
	limited := fmt.Sprintf("BEGIN READ ONLY; SET LOCAL statement_timeout = %d", max(1, c.opts.ReadTimeout.Milliseconds()))
	err = pg.NewOwn(p.pool).InTx(ctx, pgx.TxOptions{BeginQuery: limited}, func(tx pgx.Tx) error {
		contents, err = l.Contents(ctx, tx, ids, maxRead)
		return err
	})
	if err != nil {
		return err
	}
	for _, content := range contents {
		c.fillMessage(byID[content.ID], &content)
	}
	for _, m := range byID {
		m.Link = linkMessage(p, &m.OutboxMessage)
	}
	for _, m := range byID {
		if m.Payload == nil {
			m.Payload = &contentView{Note: "The relay has removed the message since this page was read."}
		}
	}
	return nil
}

func (c *Console) fillMessage(m *messageView, content *operator.MessageContent) {
	m.ContentType = content.ContentType
	m.Payload = c.newPayload(m.Topic, content.Payload, m.Size)
	m.Headers = c.newHeaders(m.Topic, content.Headers)
	m.TraceURL = c.traceURL(content.Headers["traceparent"])
}

// noteTooLarge says that a payload is not shown.
func noteTooLarge(size int) string {
	return fmt.Sprintf("The payload of %s is larger than %s, and is not shown.", formatBytes(int64(size)), formatBytes(maxRead))
}

// newPayload returns what a page shows of a payload, of which data is the beginning. A hook that redacts gets nothing that
// is cut off.
func (c *Console) newPayload(topic string, data []byte, size int) *contentView {
	if len(data) < size && (data == nil || c.opts.Redact != nil) {
		return &contentView{Note: noteTooLarge(size)}
	}
	v := c.newContent(Content{Kind: KindPayload, Name: topic, Data: data}, size)
	if !utf8.Valid(data) {
		v.Note = fmt.Sprintf("The payload is not text. %s", v.Note)
	}
	return v
}

// newHeaders returns what a page shows of headers, as JSON with sorted names. nil: there are none.
func (c *Console) newHeaders(topic string, headers map[string]string) *contentView {
	if len(headers) == 0 {
		return nil
	}
	data, err := json.Marshal(headers)
	if err != nil {
		return &contentView{Note: "The headers are not text."}
	}
	return c.newContent(Content{Kind: KindHeaders, Name: topic, Data: data}, len(data))
}

// readLetter reads payload and stack of a letter. One that is gone keeps its error.
func (c *Console) readLetter(ctx context.Context, p *place, l *letterView) error {
	if p == nil {
		return nil
	}
	letters, err := letterSide{p, operator.Inbox}.read()
	if err != nil {
		return err
	}
	found, err := letters.GetLimited(ctx, l.ID, maxRead)
	c.redactLetter(&found)
	switch {
	case errors.Is(err, operator.ErrNoDeadLetter):
		found = l.DeadLetter // which is redacted
	case err != nil:
		return err
	}
	l.DeadLetter = found
	l.Text, l.Trace = visibleLines(clipText(found.Error, maxErrorText)), visibleLines(clipText(found.Stack, 4*maxErrorText))
	l.Payload, l.Headers = c.newPayload(found.Topic, found.Payload, found.Size), c.newHeaders(found.Topic, found.Headers)
	l.TraceURL = c.traceURL(found.Headers["traceparent"])
	l.Link = letterQuery(p, operator.Inbox, l.ID)
	return nil
}

// Waits reports when the message is tried again, zero: not by itself.
func (l *letterView) Waits() time.Time {
	if l.State == operator.StateDead {
		return time.Time{}
	}
	return l.DueAt
}
