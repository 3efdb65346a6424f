package outboxes

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
)

func outboxDeadList(ctx context.Context, c *cli.Call) error {
	return listLetters(ctx, c, operator.StateDead)
}

func outboxRefusedList(ctx context.Context, c *cli.Call) error {
	return listLetters(ctx, c, operator.StateRetrying)
}

// listLetters lists messages of one state.
func listLetters(ctx context.Context, c *cli.Call, state operator.State) error {
	pick := addFilter(c)
	asJSON := c.Flags.Bool("json", false, "print JSON, a line each")
	after := c.Flags.Int64("after", 0, "begin behind this id")
	limit := c.Flags.Int("limit", cli.DefaultLimit, fmt.Sprintf("print so many, at most %d; default: %d", operator.MaxList, cli.DefaultLimit))
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if *limit < 1 || *limit > operator.MaxList {
		return fmt.Errorf("-limit must be between 1 and %d", operator.MaxList)
	}
	if err := pick.checkFilter(c); err != nil {
		return err
	}
	d, done, err := c.OpenDeadLetters(ctx, operator.Outbox, operator.Options{})
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
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
		fmt.Fprintf(c.Stderr, "there may be more: -after %d\n", letters[len(letters)-1].ID)
	}
	return nil
}

// printLetters prints a table, or a line of JSON each.
func printLetters(c *cli.Call, letters []operator.DeadLetter, asJSON bool) error {
	if asJSON {
		for _, l := range letters {
			if err := cli.PrintJSON(c.Stdout, newLetter(l)); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([][]string, len(letters))
	for i, l := range letters {
		again := "never"
		if !l.DueAt.IsZero() {
			again = cli.FormatTime(l.DueAt)
		}
		rows[i] = []string{
			strconv.FormatInt(l.ID, 10), l.MessageID, cli.FormatCell(l.Topic), cli.FormatCell(l.Scope), cli.FormatCell(l.Key), cli.FormatCell(cli.FormatStep(l)),
			strconv.Itoa(l.Attempts), cli.FormatTime(l.LastAt), again, strconv.Itoa(l.Size), cli.FormatCell(cli.ClipText(l.Error, cli.ReasonWidth)),
		}
	}
	return cli.PrintTable(c.Stdout, []string{"ID", "MESSAGE", "TOPIC", "SCOPE", "KEY", "STEP", "ATTEMPTS", "REFUSED", "AGAIN", "BYTES", "REASON"}, rows)
}

func outboxDeadShow(ctx context.Context, c *cli.Call) error {
	return c.ShowDeadLetters(ctx, operator.Outbox, printLetter)
}

// printLetter prints all that is known of l, with the payload if it has one.
func printLetter(c *cli.Call, l operator.DeadLetter, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(c.Stdout, newLetter(l))
	}
	again := "never: it is a dead letter"
	if !l.DueAt.IsZero() {
		again = cli.FormatTime(l.DueAt)
	}
	fields := [][2]string{
		{"id", strconv.FormatInt(l.ID, 10)}, {"message", l.MessageID}, {"topic", cli.FormatCell(l.Topic)}, {"type", cli.FormatCell(l.Type)},
		{"scope", cli.FormatCell(l.Scope)}, {"key", cli.FormatCell(l.Key)}, {"step", cli.FormatCell(cli.FormatStep(l))}, {"ordering key", cli.FormatCell(l.OrderingKey)},
		{"correlation", cli.FormatCell(l.CorrelationID)}, {"causation", cli.FormatCell(l.CausationID)}, {"content type", cli.FormatCell(l.ContentType)},
		{"headers", cli.FormatCell(string(l.HeadersJSON))}, {"written", cli.FormatTime(l.FirstAt)}, {"attempts", strconv.Itoa(l.Attempts)},
		{"refused", cli.FormatTime(l.LastAt)}, {"again", again}, {"reason", cli.FormatCell(l.Error)}, {"bytes", strconv.Itoa(l.Size)},
	}
	if l.Payload != nil {
		fields = append(fields, [2]string{"payload", strconv.Quote(string(l.Payload))})
	}
	return cli.PrintFields(c.Stdout, fields)
}

// A Letter is a dead letter as JSON.
type Letter struct {
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

func newLetter(l operator.DeadLetter) Letter {
	j := Letter{
		ID: l.ID, MessageID: l.MessageID, Topic: l.Topic, Type: l.Type, Scope: l.Scope, Key: l.Key, Step: l.Step, N: l.N,
		OrderingKey: l.OrderingKey, CorrelationID: l.CorrelationID, CausationID: l.CausationID, ContentType: l.ContentType,
		Headers: l.HeadersJSON, CreatedAt: cli.FormatTime(l.FirstAt), Attempts: l.Attempts, Reason: l.Error, RefusedAt: cli.FormatTime(l.LastAt), Size: l.Size,
	}
	if !l.DueAt.IsZero() {
		j.RetryAt = cli.FormatTime(l.DueAt)
	}
	if utf8.Valid(l.Payload) {
		j.Payload = string(l.Payload)
	} else {
		j.Base64 = l.Payload
	}
	return j
}
