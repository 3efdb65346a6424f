package sagarow

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
)

// Status is the column by which people find instances. Package saga documents its values.
type Status string

// The statuses. The last two are final.
const (
	Running      Status = "running"
	Compensating Status = "compensating"
	Paused       Status = "paused"
	Stuck        Status = "stuck"
	Completed    Status = "completed"
	Compensated  Status = "compensated"
)

// A Row is an instance as the table has it.
type Row struct {
	flow.Instance
	Name     string
	Version  int
	Hash     string // the beginning of its plan's
	Parent   string // name of the saga around it; "": it is the outermost
	Status   Status
	Reason   string
	Revision int
	Trace    [2]string      // traceparent and tracestate of its start
	Now      machine.Millis // of the read: the time since its start
}

// columns are what scanRow reads, in its order. The last one is the time since the start.
const columns = `scope, key, path, id, root, name, version, plan_hash, coalesce(parent, ''), status, reason, progress, state,
	revision, trace_parent, trace_state, (extract(epoch FROM clock_timestamp() - started_at) * 1000)::bigint`

// ScanRow reads a row of the columns that [BindColumns] puts into a statement. Its error is a [flow.ErrUnfit] if the
// progress is not JSON.
func ScanRow(from pgx.Row) (*Row, error) {
	var (
		r        Row
		progress string
		state    string
	)
	err := from.Scan(&r.Scope, &r.Key, &r.Path, &r.ID, &r.Root, &r.Name, &r.Version, &r.Hash, &r.Parent, &r.Status, &r.Reason, &progress, &state,
		&r.Revision, &r.Trace[0], &r.Trace[1], &r.Now)
	if err != nil {
		return nil, err
	}
	r.State = []byte(state)
	if err := json.Unmarshal([]byte(progress), &r.Progress); err != nil {
		return nil, fmt.Errorf("%w: progress: %w", flow.ErrUnfit, err)
	}
	r.restoreMessages()
	return &r, nil
}

// EncodeProgress returns the progress as it is stored, and sets Status and Reason by it.
func (r *Row) EncodeProgress(m *machine.Machine) (string, error) {
	r.Status, r.Reason = StatusOf(m, &r.Progress)
	data, err := json.Marshal(r.shortenMessages())
	if err != nil {
		return "", fmt.Errorf("saga: progress: %w", err)
	}
	return string(data), nil
}

// shortenMessages returns the progress without the bytes of messages that equal the state, which the row has already,
// and with others as JSON where that keeps their bytes: base64 is a third longer, in the row and in the server's log.
func (r *Row) shortenMessages() *machine.Progress {
	short := r.Progress
	short.Steps = slices.Clone(short.Steps)
	for i := range short.Steps {
		s := &short.Steps[i]
		switch {
		case len(s.Message) == 0:
		case bytes.Equal(s.Message, r.State):
			s.Message, s.SentState = nil, true
		case staysAsJSON(s.Message):
			s.Message, s.Body = nil, s.Message
		}
	}
	return &short
}

// restoreMessages undoes shortenMessages.
func (r *Row) restoreMessages() {
	for i := range r.Progress.Steps {
		s := &r.Progress.Steps[i]
		switch {
		case s.SentState:
			s.Message = slices.Clone(r.State)
		case s.Body != nil:
			s.Message = s.Body
		}
		s.SentState, s.Body = false, nil
	}
}

// maxNesting is far below the 10,000 levels that encoding/json reads: the progress adds its own to those of a message.
const maxNesting = 9000

// staysAsJSON reports whether message keeps its bytes within other JSON, in a column of text, and can be read there.
func staysAsJSON(message []byte) bool {
	if bytes.Count(message, []byte("["))+bytes.Count(message, []byte("{")) > maxNesting {
		return false
	}
	encoded, err := json.Marshal(json.RawMessage(message))
	return err == nil && bytes.Equal(encoded, message) && utf8.Valid(message)
}

// StatusOf returns the status of a progress, and the reason for it, clipped to what the table can hold.
func StatusOf(m *machine.Machine, p *machine.Progress) (Status, string) {
	status, reason := Status(p.Phase), p.Reason
	switch {
	case p.Phase.Ended():
	case p.Stuck():
		status, reason = Stuck, m.Why(p)
	case p.Paused:
		status = Paused
	case p.Held():
		reason = m.Why(p)
	}
	return status, flow.ClipReason(reason)
}
