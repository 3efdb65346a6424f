package outboxes

import (
	"cmp"
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
	c.TakeSeveral(cli.DefaultSchema)
	pick, after, limit := addFilter(c), c.AddAfterID(), c.AddLimitFlag()
	asJSON := c.Flags.Bool("json", false, "print JSON, one object per line")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if err := cmp.Or(cli.CheckLimit(*limit), pick.checkFilter(c)); err != nil {
		return err
	}
	targets, err := c.OpenTargets(ctx, cli.DefaultSchema)
	if err != nil {
		return err
	}
	defer targets.Close()
	pick.filter.State = state
	letters, err := cli.ListTargets(ctx, targets, after, *limit, func(ctx context.Context, t *cli.Target, after int64, limit int) ([]operator.DeadLetter, error) {
		d, err := t.OpenDeadLetters(operator.Outbox, operator.Options{})
		if err != nil {
			return nil, err
		}
		return d.List(ctx, pick.filter, after, limit)
	})
	if err != nil {
		return err
	}
	if err := printLetters(c, targets, letters, *asJSON); err != nil {
		return err
	}
	if len(letters) == *limit {
		last := letters[len(letters)-1]
		fmt.Fprintf(c.Stderr, "there may be more: -after %s\n", targets.FormatPlace(last.Target, strconv.FormatInt(last.Entry.ID, 10)))
	}
	return nil
}

// printLetters prints a table, or a line of JSON each.
func printLetters(c *cli.Call, targets *cli.Targets, letters []cli.Listed[operator.DeadLetter], asJSON bool) error {
	if asJSON {
		for _, l := range letters {
			if err := cli.PrintJSON(c.Stdout, newLetter(l.Target, l.Entry)); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([][]string, len(letters))
	// The answer of the broker is the end of an error.
	for i := range letters {
		l := letters[i].Entry
		again := "never"
		if !l.DueAt.IsZero() {
			again = cli.FormatTime(l.DueAt)
		}
		rows[i] = []string{
			strconv.FormatInt(l.ID, 10), l.MessageID, cli.FormatCell(l.Topic), cli.FormatCell(l.Scope), cli.FormatCell(l.Key), cli.FormatCell(cli.FormatStep(l)),
			strconv.Itoa(l.Attempts), cli.FormatTime(l.LastAt), again, strconv.Itoa(l.Size), cli.FormatCell(cli.ClipStart(l.Error, cli.ReasonWidth)),
		}
	}
	header := []string{"ID", "MESSAGE", "TOPIC", "SCOPE", "KEY", "STEP", "ATTEMPTS", "REFUSED", "AGAIN", "BYTES", "REASON"}
	return targets.PrintListed(c, header, cli.TargetsOf(letters), rows)
}

func outboxDeadShow(ctx context.Context, c *cli.Call) error {
	return c.ShowDeadLetters(ctx, operator.Outbox, printLetter)
}

// printLetter prints all that is known of l, with the payload if it has one.
func printLetter(c *cli.Call, t *cli.Target, l operator.DeadLetter, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(c.Stdout, newLetter(t, l))
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
	Schema        string          `json:"schema"`
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

func newLetter(t *cli.Target, l operator.DeadLetter) Letter {
	j := Letter{
		Schema: t.Name, ID: l.ID, MessageID: l.MessageID, Topic: l.Topic, Type: l.Type, Scope: l.Scope, Key: l.Key, Step: l.Step, N: l.N,
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
