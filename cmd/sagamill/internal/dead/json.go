package dead

import (
	"strconv"
	"unicode/utf8"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
)

// A Letter is a parked message as JSON. Bytes that are not UTF-8 are base64, in a separate member.
type Letter struct {
	Schema        string            `json:"schema"`
	ID            int64             `json:"id"`
	State         string            `json:"state"`
	Kind          string            `json:"kind"`
	Scope         string            `json:"scope"`
	Key           string            `json:"key"`
	Step          string            `json:"step"`
	N             string            `json:"n,omitempty"`
	Topic         string            `json:"topic"`
	MessageID     string            `json:"message_id,omitempty"`
	MessageBase64 []byte            `json:"message_id_base64,omitempty"`
	Headers       map[string]string `json:"headers"`
	HeadersBase64 map[string][]byte `json:"headers_base64,omitempty"` // names that are not UTF-8 are quoted
	Reason        string            `json:"reason"`
	Error         string            `json:"error"`
	Stack         string            `json:"stack,omitempty"`
	Attempts      int               `json:"attempts"`
	FirstAt       string            `json:"first_at"`
	LastAt        string            `json:"last_at"`
	DueAt         string            `json:"due_at,omitempty"`
	Edited        bool              `json:"edited"`
	InDoubt       bool              `json:"in_doubt"`
	Size          int               `json:"bytes"`
	Earlier       []EarlierFailure  `json:"earlier_failures,omitempty"`
	Payload       string            `json:"payload,omitempty"`
	Base64        []byte            `json:"payload_base64,omitempty"`

	Outcome string `json:"outcome,omitempty"` // of a plan
	Why     string `json:"why,omitempty"`
}

// An EarlierFailure is an [operator.Failure] as JSON.
type EarlierFailure struct {
	At     string `json:"at,omitempty"`
	Reason string `json:"reason"`
	Error  string `json:"error"`
	Stack  string `json:"stack,omitempty"`
}

func newLetter(t *cli.Target, l operator.DeadLetter) Letter {
	j := Letter{
		Schema: t.Name, ID: l.ID, State: string(l.State), Kind: l.Kind, Scope: l.Scope, Key: l.Key, Step: l.Step, N: l.N, Topic: l.Topic,
		Headers: map[string]string{}, Reason: string(l.Reason), Error: l.Error, Stack: l.Stack, Attempts: l.Attempts,
		FirstAt: cli.FormatTime(l.FirstAt), LastAt: cli.FormatTime(l.LastAt), Edited: l.Edited, InDoubt: l.InDoubt, Size: l.Size,
	}
	if !l.DueAt.IsZero() {
		j.DueAt = cli.FormatTime(l.DueAt)
	}
	j.MessageID, j.MessageBase64 = splitText([]byte(l.MessageID))
	j.Payload, j.Base64 = splitText(l.Payload)
	for _, f := range l.Earlier {
		j.Earlier = append(j.Earlier, EarlierFailure{At: formatFailed(f), Reason: string(f.Reason), Error: f.Error, Stack: f.Stack})
	}
	for name, value := range l.Headers {
		j.addHeader(name, value)
	}
	return j
}

// formatFailed returns when f happened, or "" if the time is not known.
func formatFailed(f operator.Failure) string {
	if f.At.IsZero() {
		return ""
	}
	return cli.FormatTime(f.At)
}

func (j *Letter) addHeader(name, value string) {
	if utf8.ValidString(name) && utf8.ValidString(value) {
		j.Headers[name] = value
		return
	}
	if j.HeadersBase64 == nil {
		j.HeadersBase64 = map[string][]byte{}
	}
	if !utf8.ValidString(name) {
		name = strconv.Quote(name)
	}
	j.HeadersBase64[name] = []byte(value)
}

func splitText(b []byte) (string, []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return "", b
}
