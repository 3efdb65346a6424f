package saga

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/lazytx"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/traceheader"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// A session is the work on one instance, and on those that begin nested in it, in one
// transaction. What it sends is collected: it is stored at the end, when it is
// known that there is something to store.
type session struct {
	sql *queries
	tx  pgx.Tx
	row *row
	out []outbox.Message

	// delivery, if set, executes statements with the last round trip of the transaction.
	delivery *consumer.Delivery

	// claim, if set, makes sure that the instance is this transaction's to begin,
	// before anything is done that could not be forgotten.
	claim func(ctx context.Context) error
}

var _ flow.Outlet = (*session)(nil)

// run returns the work on s's instance.
func (s *session) run(f *flow.Flow) *flow.Run {
	r := &flow.Run{Flow: f, Instance: &s.row.Instance, Now: s.row.now, Out: s, Later: s.row.later}
	if s.delivery != nil {
		r.Out = laterSession{s}
	}
	return r
}

// A laterSession is a session in a transaction of package consumer.
type laterSession struct{ *session }

// Queue implements [flow.Queuer].
func (s laterSession) Queue(statements []flow.Statement) {
	for _, one := range statements {
		s.delivery.Queue(one.SQL, one.Args...)
	}
}

func (s *session) claimed(ctx context.Context) error {
	if s.claim == nil {
		return nil
	}
	claim := s.claim
	s.claim = nil
	return claim(ctx)
}

// Command implements [flow.Outlet].
func (s *session) Command(_ context.Context, c flow.Command) error {
	if c.Nested != "" {
		s.revoke(c)
		return nil
	}
	headers := map[string]string{HeaderReplyTo: Topic(s.row.name)}
	if c.Again {
		headers[outbox.HeaderReplayed] = time.Now().UTC().Format(time.RFC3339)
	}
	s.send(outbox.Message{Topic: c.Topic, Type: c.Type, Step: c.Step, N: s.mark(c.N), Payload: c.Body, Headers: headers})
	return nil
}

// A revocation is the body of a TypeRevoke message. Its n is the path of the instance.
type revocation struct {
	Reason string `json:"reason"`
}

// revoke has the instance that is nested at c undone. It is told by a message, so that the
// work on an instance needs no lock of one that is nested in it.
func (s *session) revoke(c flow.Command) {
	body, err := json.Marshal(revocation{Reason: s.row.Progress.Reason})
	if err != nil {
		panic(err) // a string
	}
	s.send(outbox.Message{Topic: Topic(c.Nested), Type: TypeRevoke, Step: c.Step, N: s.mark(c.N), Payload: body})
}

// mark returns the own n of the instance's messages, to which the outbox adds the incarnation.
func (s *session) mark(n string) string {
	_, rest := flow.Incarnation(n)
	return flow.Mark(s.row.Root, rest)
}

// incarnation is that of all messages of the instance's saga.
func (s *session) incarnation() string {
	incarnation, _ := flow.Incarnation(s.row.Path)
	return cmp.Or(incarnation, outbox.NoIncarnation)
}

// send fills in what all messages of the instance have in common.
func (s *session) send(m outbox.Message) {
	m.Scope, m.Key, m.Incarnation, m.CorrelationID = s.row.Scope, s.row.Key, s.incarnation(), s.row.Root
	if m.OrderingKey == "" {
		m.OrderingKey = orderingKey(m.Scope, m.Key, m.N)
	}
	if m.Payload == nil {
		m.Payload = []byte("null")
	}
	s.out = append(s.out, m)
}

// Emit implements [flow.Outlet].
func (s *session) Emit(_ context.Context, msgs []outbox.Message) error {
	for _, m := range msgs {
		m.Scope, m.Key = cmp.Or(m.Scope, s.row.Scope), cmp.Or(m.Key, s.row.Key)
		m.CorrelationID = cmp.Or(m.CorrelationID, s.row.Root)
		if m.Scope == s.row.Scope && m.Key == s.row.Key {
			m.Incarnation = cmp.Or(m.Incarnation, s.incarnation())
		}
		m.Incarnation = cmp.Or(m.Incarnation, outbox.NoIncarnation)
		s.out = append(s.out, m)
	}
	return outbox.Validate(s.out[len(s.out)-len(msgs):]...)
}

// Nested implements [flow.Outlet]. A savepoint is set with the first statement of
// do's, and none if there is none.
func (s *session) Nested(ctx context.Context, do func(tx pgx.Tx) error) (failed, err error) {
	if err := s.claimed(ctx); err != nil {
		return nil, err
	}
	part := lazytx.Nested(s.tx, "sagamill_local")
	failed = do(txguard.Wrap(part.Holder()))
	if !part.End() {
		_ = s.tx.Conn().Close(ctx) // what is left running must not reach the next statement's place
		return nil, errors.Join(errors.New("saga: a local step returned while it was using its transaction"), failed)
	}
	if !part.Began() {
		return failed, part.Lost()
	}
	conn := s.tx.Conn()
	switch {
	case conn.IsClosed(), conn.PgConn().IsBusy(), txguard.StatusOf(conn) == txguard.Ended:
		return nil, errors.Join(errors.New("saga: a local step has lost its transaction, ended it, or left rows unread"), failed)
	case failed == nil && txguard.StatusOf(conn) == txguard.Aborted:
		failed = errors.New("the step returned nil after a statement had failed")
	}
	if failed != nil {
		if _, err := s.tx.Exec(ctx, "ROLLBACK TO SAVEPOINT sagamill_local"); err != nil {
			return nil, fmt.Errorf("saga: undo local step: %w", errors.Join(err, failed))
		}
	}
	return failed, nil
}

// Child implements [flow.Outlet].
func (s *session) Child(ctx context.Context, c flow.Child) error {
	if err := s.claimed(ctx); err != nil {
		return err
	}
	child := newRow(c.Flow, s.row.Scope, s.row.Key, c.Path)
	child.Root, child.parent, child.trace = s.row.Root, s.row.name, s.row.trace
	within := &session{sql: s.sql, tx: s.tx, row: child}
	existed, err := within.begin(ctx, c.Flow, c.State)
	if err != nil || existed {
		return err
	}
	s.out = append(s.out, within.out...)
	return nil
}

func newRow(f *flow.Flow, scope, key, path string) *row {
	id := uuid.Must(uuid.NewV7()).String()
	return &row{Instance: flow.Instance{ID: id, Root: id, Scope: scope, Key: key, Path: path}, name: f.Name(), version: f.Version(), hash: f.Hash}
}

// errExists reports that an instance has been begun before.
var errExists = errors.New("saga: the instance exists")

// begin begins s's instance, unless it exists.
func (s *session) begin(ctx context.Context, f *flow.Flow, state any) (existed bool, err error) {
	m := f.Machine
	var inserted bool
	insert := func(ctx context.Context) error {
		args, err := s.row.insertion(m)
		if err != nil {
			return err
		}
		tag, err := s.tx.Exec(ctx, s.sql.insertInstance, args...)
		if err == nil && tag.RowsAffected() == 0 {
			err = errExists
		}
		inserted = err == nil
		return err
	}
	s.claim = func(ctx context.Context) error { // what has happened so far is stored at the end
		now := s.row.Instance
		defer func() { s.row.Instance = now }()
		s.row.Progress = m.Begin()
		if s.row.State, err = f.State.Encode(state); err != nil {
			return fmt.Errorf("saga: state: %w", err)
		}
		return insert(ctx)
	}
	err = s.run(f).Begin(ctx, state)
	switch {
	case err == nil && inserted:
		err = s.store(ctx, m)
	case err == nil:
		err = insert(ctx)
	}
	s.claim = nil
	if errors.Is(err, errExists) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("saga: begin %s: %w", f.Name(), err)
	}
	s.answerParent()
	return false, nil
}

// queue returns the arguments that insert s's instance, begun without a transaction.
func (s *session) queue(ctx context.Context, f *flow.Flow, state any) ([]any, error) {
	if err := s.run(f).Begin(ctx, state); err != nil {
		return nil, err
	}
	return s.row.insertion(f.Machine)
}

// store stores what became of a locked instance.
func (s *session) store(ctx context.Context, m *machine.Machine) error {
	args, err := s.row.movement(m)
	if err != nil {
		return err
	}
	if s.delivery != nil {
		s.delivery.Queue(s.sql.moveInstance, args...)
		return nil
	}
	if _, err := s.tx.Exec(ctx, s.sql.moveInstance, args...); err != nil {
		return fmt.Errorf("saga: store instance: %w", err)
	}
	return nil
}

// answerParent tells the saga around s's instance how that has ended.
func (s *session) answerParent() {
	p := &s.row.Progress
	if s.row.parent == "" || !p.Phase.Ended() {
		return
	}
	r := reply{Outcome: OutcomeRejected, Reason: p.Reason}
	undo := p.Revoke
	switch {
	case undo:
		r = reply{Outcome: OutcomeUndone}
	case p.Phase == machine.Completed:
		r = reply{Outcome: OutcomeDone, Result: s.row.State}
	}
	body, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings, and JSON
	}
	s.send(outbox.Message{
		Topic: Topic(s.row.parent), Type: TypeReply, Step: nestedStep(s.row.name), N: s.mark(flow.ReplyN(s.row.Path, undo, "")), Payload: body,
		OrderingKey: orderingKey(s.row.Scope, s.row.Key, s.row.Path),
	})
}

// traced returns what s sends with the trace that the instance began in.
func (s *session) traced() []outbox.Message {
	if s.row.trace[0] == "" {
		return s.out
	}
	for i := range s.out {
		s.out[i].Headers = traceheader.Add(s.out[i].Headers, traceLimits, s.row.trace[0], s.row.trace[1])
	}
	return s.out
}

var traceLimits = traceheader.Limits{Count: outbox.MaxHeaders, Bytes: outbox.MaxHeaderBytes}
