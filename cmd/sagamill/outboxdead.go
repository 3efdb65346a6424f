package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/sagamill/sagamill/operator"
)

func outboxDeadCommands() []command {
	return []command{
		{"outbox dead list", "messages that the broker refused until their attempts were used up", outboxDeadList},
		{"outbox dead show", "all that is known of those with -id", outboxDeadShow},
		{"outbox dead redrive", "send them round again: those with -id, or -all that a filter picks", outboxDeadRedrive},
		{"outbox dead discard", "remove them for good: those with -id, or -all that a filter picks", outboxDeadDiscard},
	}
}

func outboxRefusedCommands() []command {
	return []command{
		{"outbox refused list", "messages that the broker refuses and that are tried again", outboxRefusedList},
		{"outbox refused release", "make those with -id dead letters now, and let go what waits behind them", outboxRefusedRelease},
	}
}

const (
	defaultLimit = 100
	previewLimit = 20 // what a dry run shows
	reasonWidth  = 100
)

func outboxDeadList(ctx context.Context, c *call) error {
	return listLetters(ctx, c, operator.StateDead)
}

func outboxRefusedList(ctx context.Context, c *call) error {
	return listLetters(ctx, c, operator.StateRetrying)
}

// listLetters lists messages of one state.
func listLetters(ctx context.Context, c *call, state operator.State) error {
	pick := c.pick()
	asJSON := c.flags.Bool("json", false, "print JSON, a line each")
	after := c.flags.Int64("after", 0, "begin behind this id")
	limit := c.flags.Int("limit", defaultLimit, fmt.Sprintf("print so many, at most %d; default: %d", operator.MaxList, defaultLimit))
	if err := c.parseDatabase(); err != nil {
		return err
	}
	if *limit < 1 || *limit > operator.MaxList {
		return fmt.Errorf("-limit must be between 1 and %d", operator.MaxList)
	}
	if err := pick.check(c); err != nil {
		return err
	}
	d, done, err := c.letters(ctx, operator.Options{})
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	pick.filter.State = state
	letters, err := d.List(ctx, pick.filter, *after, *limit)
	if err != nil {
		return err
	}
	if err := printLetters(c, letters, *asJSON); err != nil {
		return err
	}
	if len(letters) == *limit {
		fmt.Fprintf(c.stderr, "there may be more: -after %d\n", letters[len(letters)-1].ID)
	}
	return nil
}

// printLetters prints a table, or a line of JSON each.
func printLetters(c *call, letters []operator.DeadLetter, asJSON bool) error {
	if asJSON {
		for _, l := range letters {
			if err := printJSON(c.stdout, newLetter(l)); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([][]string, len(letters))
	for i, l := range letters {
		again := "never"
		if !l.DueAt.IsZero() {
			again = stamp(l.DueAt)
		}
		rows[i] = []string{
			strconv.FormatInt(l.ID, 10), l.MessageID, cell(l.Topic), cell(l.Scope), cell(l.Key), cell(stepName(l)),
			strconv.Itoa(l.Attempts), stamp(l.LastAt), again, strconv.Itoa(l.Size), cell(clip(l.Error, reasonWidth)),
		}
	}
	return printTable(c.stdout, []string{"ID", "MESSAGE", "TOPIC", "SCOPE", "KEY", "STEP", "ATTEMPTS", "REFUSED", "AGAIN", "BYTES", "REASON"}, rows)
}

func stepName(l operator.DeadLetter) string {
	if l.N == "" {
		return l.Step
	}
	return l.Step + "#" + l.N
}

func outboxDeadShow(ctx context.Context, c *call) error {
	var ids []int64
	c.flags.Var(idList{&ids}, "id", "which; several separated by commas")
	payload := c.flags.Bool("payload", false, "print the payload too")
	asJSON := c.flags.Bool("json", false, "print JSON, a line each")
	if err := c.parseDatabase(); err != nil {
		return err
	}
	if len(ids) == 0 {
		return errors.New("say which with -id")
	}
	d, done, err := c.letters(ctx, operator.Options{})
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for _, id := range ids {
		l, err := d.Get(ctx, id)
		if err != nil {
			return fmt.Errorf("%d: %w", id, err)
		}
		if !*payload {
			l.Payload = nil
		}
		if err := printLetter(c, l, *asJSON); err != nil {
			return err
		}
	}
	return nil
}

// printLetter prints all that is known of l, with the payload if it has one.
func printLetter(c *call, l operator.DeadLetter, asJSON bool) error {
	if asJSON {
		return printJSON(c.stdout, newLetter(l))
	}
	again := "never: it is a dead letter"
	if !l.DueAt.IsZero() {
		again = stamp(l.DueAt)
	}
	fields := [][2]string{
		{"id", strconv.FormatInt(l.ID, 10)}, {"message", l.MessageID}, {"topic", cell(l.Topic)}, {"type", cell(l.Type)},
		{"scope", cell(l.Scope)}, {"key", cell(l.Key)}, {"step", cell(stepName(l))}, {"ordering key", cell(l.OrderingKey)},
		{"correlation", cell(l.CorrelationID)}, {"causation", cell(l.CausationID)}, {"content type", cell(l.ContentType)},
		{"headers", cell(string(l.HeadersJSON))}, {"written", stamp(l.FirstAt)}, {"attempts", strconv.Itoa(l.Attempts)},
		{"refused", stamp(l.LastAt)}, {"again", again}, {"reason", cell(l.Error)}, {"bytes", strconv.Itoa(l.Size)},
	}
	if l.Payload != nil {
		fields = append(fields, [2]string{"payload", strconv.Quote(string(l.Payload))})
	}
	return printFields(c.stdout, fields)
}

// A letter is a dead letter as JSON.
type letter struct {
	ID            int64           `json:"id"`
	MessageID     string          `json:"message_id"`
	Topic         string          `json:"topic"`
	Type          string          `json:"type"`
	Scope         string          `json:"scope"`
	Key           string          `json:"key"`
	Step          string          `json:"step"`
	N             string          `json:"n,omitempty"`
	OrderingKey   string          `json:"ordering_key"`
	CorrelationID string          `json:"correlation_id"`
	CausationID   string          `json:"causation_id,omitempty"`
	ContentType   string          `json:"content_type"`
	Headers       json.RawMessage `json:"headers,omitempty"`
	CreatedAt     string          `json:"created_at"`
	Attempts      int             `json:"attempts"`
	Reason        string          `json:"reason"`
	RefusedAt     string          `json:"refused_at"`
	RetryAt       string          `json:"retry_at,omitempty"`
	Size          int             `json:"bytes"`
	Payload       string          `json:"payload,omitempty"`        // if it is UTF-8
	Base64        []byte          `json:"payload_base64,omitempty"` // if it is not
}

func newLetter(l operator.DeadLetter) letter {
	j := letter{
		ID: l.ID, MessageID: l.MessageID, Topic: l.Topic, Type: l.Type, Scope: l.Scope, Key: l.Key, Step: l.Step, N: l.N,
		OrderingKey: l.OrderingKey, CorrelationID: l.CorrelationID, CausationID: l.CausationID, ContentType: l.ContentType,
		Headers: l.HeadersJSON, CreatedAt: stamp(l.FirstAt), Attempts: l.Attempts, Reason: l.Error, RefusedAt: stamp(l.LastAt), Size: l.Size,
	}
	if !l.DueAt.IsZero() {
		j.RetryAt = stamp(l.DueAt)
	}
	if utf8.Valid(l.Payload) {
		j.Payload = string(l.Payload)
	} else {
		j.Base64 = l.Payload
	}
	return j
}
