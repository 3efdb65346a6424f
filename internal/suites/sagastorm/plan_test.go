package sagastorm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/saga"
)

// The outcomes of a step. By default it is done at once.
const (
	reject   = "reject"   // says no
	once     = "once"     // says no to the first attempt
	dead     = "dead"     // becomes a dead letter
	flaky    = "flaky"    // fails when it is entered first
	slow     = "slow"     // takes longer than any deadline
	undoOdd  = "undo odd" // is done; its compensation fails when it is entered first
	skip     = "skip"     // its condition does not hold
	topic    = "work"     // of all commands
	deadline = 250 * time.Millisecond
	slowness = 400 * time.Millisecond
)

// A job is the state of every saga: what its steps come to, and which have said so.
type job struct {
	Ends map[string]string `json:"ends"`
	Done []string          `json:"done"`
}

// A command is the body of a message to a participant.
type command struct {
	End string `json:"end"`
}

type result struct {
	Step string `json:"step"`
}

// remote is a step of a participant.
func remote(name string) saga.Step[job] {
	body := func(s *job) command { return command{End: s.Ends[name]} }
	s := saga.Step[job]{
		Name: name,
		Do:   saga.Remote(topic, body, func(s *job, r result) { s.Done = append(s.Done, r.Step) }),
		Undo: saga.Remote[job, command, any](topic, body, nil),
	}
	s.Do.Type, s.Undo.Type = name+".do", name+".undo"
	return s
}

// undone is a step of a participant whose dead letter compensates.
func undone(name string) saga.Step[job] {
	s := remote(name)
	s.OnDeadLetter = saga.Undo
	return s
}

// forward is a step that is not undone.
func forward(name string, attempts int) saga.Step[job] {
	s := remote(name)
	s.Undo, s.Retry = saga.Action[job]{}, saga.Retry{Attempts: attempts, Base: 10 * time.Millisecond}
	return s
}

// within gives a step a deadline.
func within(s saga.Step[job]) saga.Step[job] {
	s.Deadline = deadline
	return s
}

// local is a step in the orchestrator's transaction.
func local(schema, name string) saga.Step[job] {
	return saga.Step[job]{
		Name: name,
		Do: saga.Local(func(ctx context.Context, tx pgx.Tx, t saga.Turn, s *job) error {
			if err := leave(ctx, tx, schema, t.Key, fmt.Sprint("local.", t.Attempt), name, "do"); err != nil {
				return err
			}
			s.Done = append(s.Done, name)
			switch {
			case s.Ends[name] == reject:
				return saga.Reject("no")
			case s.Ends[name] == flaky && t.Attempt == 1:
				return errors.New("not now")
			}
			return nil
		}),
		Undo: saga.Local(func(ctx context.Context, tx pgx.Tx, t saga.Turn, _ *job) error {
			return leave(ctx, tx, schema, t.Key, fmt.Sprint("local.", t.Attempt), name, "undo")
		}),
		Retry: saga.Retry{Attempts: 10, Base: 5 * time.Millisecond}, UndoRetry: saga.Retry{Base: 5 * time.Millisecond},
	}
}

// leave notes what is done, in its transaction.
func leave(ctx context.Context, tx pgx.Tx, schema, key, n, step, kind string) error {
	_, err := tx.Exec(ctx, "INSERT INTO "+schema+".storm_effect (key, n, step, kind) VALUES ($1, $2, $3, $4)", key, n, step, kind)
	return err
}

// A kind is a saga of the storm.
type kind struct {
	plan   *saga.Definition[job]
	names  []string   // steps, those of nested sagas included
	chains [][]string // steps that follow each other
	pivot  string
	exact  bool // without deadlines: what its steps come to says how it ends
}

// kinds are those that are started, by name.
func kinds(schema string) map[string]kind {
	par := func(name string, all ...saga.Step[job]) saga.Step[job] { return saga.Step[job]{Name: name, All: all} }
	seq := func(name string, all ...saga.Step[job]) saga.Step[job] { return saga.Step[job]{Name: name, Seq: all} }
	conditional := remote("c")
	conditional.When = func(s *job) bool { return s.Ends["c"] != skip }
	lone := forward("d", 1)
	lone.OnDeadLetter = saga.Undo
	pivot, last := forward("p", 2), local(schema, "z")
	pivot.Pivot, last.Undo, last.UndoRetry, last.Retry.Attempts = true, saga.Action[job]{}, saga.Retry{}, 3
	inner := saga.Must(saga.Define("inner", 1, par("both", undone("b"), undone("c"))))
	nested := saga.Step[job]{Name: "inside", Do: saga.Nested(inner,
		func(s *job) job { return job{Ends: s.Ends} }, func(s *job, c job) { s.Done = append(s.Done, c.Done...) })}
	all := []kind{
		{plan: saga.Must(saga.Define("line", 1, remote("a"), within(remote("b")), conditional, remote("d"))),
			chains: [][]string{{"a", "b", "c", "d"}}},
		{plan: saga.Must(saga.Define("fan", 1, par("wide", undone("a"), seq("two", undone("b"), undone("c")), lone), undone("e"))),
			chains: [][]string{{"a", "e"}, {"b", "c", "e"}, {"d", "e"}}, exact: true},
		{plan: saga.Must(saga.Define("pay", 1, remote("a"), remote("b"), pivot, forward("f", 3), last)),
			chains: [][]string{{"a", "b", "p", "f", "z"}}, pivot: "p", exact: true},
		{plan: saga.Must(saga.Must(saga.Define("mixed", 1, local(schema, "y"), within(undone("a")), local(schema, "z"), undone("b"))).Within(20 * time.Second)),
			chains: [][]string{{"y", "a", "z", "b"}}},
		{plan: saga.Must(saga.Define("nest", 1, undone("a"), nested, undone("d"))),
			chains: [][]string{{"a", "b", "d"}, {"a", "c", "d"}}, exact: true},
	}
	byName := map[string]kind{"inner": {plan: inner}}
	for _, k := range all {
		seen := map[string]bool{}
		for _, chain := range k.chains {
			for _, name := range chain {
				if !seen[name] {
					k.names = append(k.names, name)
				}
				seen[name] = true
			}
		}
		byName[k.plan.Name()] = k
	}
	return byName
}

// replyTopics are those of the orchestrators.
func replyTopics() (all []string) {
	for name := range kinds("s") {
		all = append(all, saga.Topic(name))
	}
	return all
}

// steps are those of a participant.
func steps(schema string) (all []consumer.Step) {
	for _, name := range strings.Fields("a b c d e f p") {
		s := consumer.Step{
			Name:         name,
			Action:       saga.On(topic, doing(schema, name)),
			Compensation: saga.OnUndo(topic, undoing(schema, name)),
			MaxAttempts:  20, RetryBase: time.Millisecond, RetryCap: 20 * time.Millisecond, CancelParked: true,
		}
		s.Action.Type, s.Compensation.Type = name+".do", name+".undo"
		all = append(all, saga.Participant(s))
	}
	return all
}

func doing(schema, name string) saga.Handler[command, result] {
	return func(ctx context.Context, tx pgx.Tx, in consumer.Message[command]) (result, error) {
		end := in.Body.End
		if end == reject || end == once && strings.HasSuffix(in.N, ".1") {
			return result{}, saga.Reject("no")
		}
		if err := leave(ctx, tx, schema, in.Key, in.N, name, "do"); err != nil {
			return result{}, err
		}
		switch {
		case end == dead:
			return result{}, consumer.Terminal(errors.New("never"))
		case end == flaky && in.Attempt == 1:
			return result{}, errors.New("not now")
		case end == slow:
			_, err := tx.Exec(ctx, "SELECT pg_sleep($1)", slowness.Seconds())
			return result{Step: name}, err
		}
		return result{Step: name}, nil
	}
}

func undoing(schema, name string) saga.UndoHandler[command] {
	return func(ctx context.Context, tx pgx.Tx, in consumer.Message[command]) error {
		if err := leave(ctx, tx, schema, in.Key, in.N, name, "undo"); err != nil {
			return err
		}
		if in.Body.End == undoOdd && in.Attempt == 1 {
			return errors.New("not now")
		}
		return nil
	}
}
