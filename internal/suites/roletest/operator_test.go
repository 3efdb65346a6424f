package roletest_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/suites/roletest"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// An operator does all that the command can change, and needs for it what the role is
// granted. To see where things are, a person is a reader besides.
func TestAnOperatorGetsByWithItsGrants(t *testing.T) {
	t.Parallel()
	newWorld(t).checkLeast("operator", operate)
}

// A reader sees all that the command can show, and needs for it what the role is granted.
func TestAReaderGetsByWithItsGrants(t *testing.T) {
	t.Parallel()
	newWorld(t).checkLeast("reader", look)
}

// sqlHold has messages of a key in the outbox that the broker refuses, or refused.
const sqlHold = `
INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id,
	content_type, payload, state, due_at, attempts, reason, refused_at)
SELECT nextval('{schema}.outbox_id_seq'), gen_random_uuid(), 'orders', 'orders', 'tenant', $1, 'take', '', $1, '', '',
	'application/json', '{}', state, CASE state WHEN 'waiting' THEN 'infinity' ELSE clock_timestamp() END,
	CASE state WHEN 'waiting' THEN 0 ELSE 1 END, 'no queue', CASE WHEN state <> 'waiting' THEN clock_timestamp() END
FROM unnest('{dead,dead,refused,waiting}'::text[]) state`

// sqlLeaveUnknown has two requests whose outcome is unknown.
const sqlLeaveUnknown = `
INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at)
SELECT 'http', $1, name, 5, '', '', gen_random_uuid(), 1, clock_timestamp(), 'infinity' FROM unnest('{charged,not}'::text[]) name`

// sqlPublish has the log published up to now.
const sqlPublish = `
INSERT INTO {schema}.outbox_cursor_0 (epoch, seq, from_snapshot, last_id)
SELECT epoch, 1, pg_current_snapshot()::text, 0 FROM {schema}.outbox_relay WHERE $1 <> '' ON CONFLICT DO NOTHING`

// prepare makes failures, as the superuser: messages of steps, named after key, that are dead or fail,
// messages of the outbox that are refused, and sagas without replies.
func (w *world) prepare(ctx context.Context, key string) error {
	var never atomic.Bool
	all := steps(&never)
	all = append(all, consumer.Step{
		Name: "fails", RetryBase: time.Hour, RetryCap: time.Hour,
		Action: consumer.On("fails", func(context.Context, pgx.Tx, consumer.Message[request], consumer.Emit) error { return errors.New("no") }),
	})
	c, err := consumer.New(w.Admin, nil, all, &consumer.Options{Schema: w.Schema, Logger: quiet})
	if err != nil {
		return err
	}
	old := newMessage("broken", key+"-old", "broken")
	old.Metadata.Set(outbox.PropertyTimestamp, time.Now().Add(-48*time.Hour).UTC().Format(time.RFC3339))
	for _, msg := range []*message.Message{
		newMessage("broken", key+"-redriven", "broken"), newMessage("broken", key+"-discarded", "broken"), old,
		newMessage("fails", key+"-fails", "fails"),
	} {
		if err := c.Handle(ctx, msg.Metadata.Get(outbox.PropertyType), msg); err != nil {
			return err
		}
	}
	for _, sql := range []string{
		"DELETE FROM {schema}.inbox WHERE key = $1 || '-old'",
		"UPDATE {schema}.inbox_horizon SET swept_before = clock_timestamp() - interval '1 day' WHERE $1 <> ''",
		sqlHold, sqlPublish, sqlLeaveUnknown,
	} {
		if err := w.admin(ctx, sql, key); err != nil {
			return err
		}
	}
	if err := w.register(ctx); err != nil {
		return err
	}
	begins, err := w.beginner()
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, w.Admin, func(tx pgx.Tx) error {
		return cmp.Or(begins(ctx, tx, key), begins(ctx, tx, key+"-second"))
	})
}

// register runs an orchestrator, as the superuser, until the plans are known.
func (w *world) register(ctx context.Context) error {
	const known = "SELECT count(*) = 2 FROM {schema}.saga_definition"
	var done bool
	if err := w.Admin.QueryRow(ctx, w.bind(known)).Scan(&done); err != nil || done {
		return err
	}
	o, err := saga.NewOrchestrator(w.Admin, inproc.New(nil).Subscriber("orchestrator"), []saga.Plan{tours}, &saga.Options{Schema: w.Schema, Logger: quiet})
	if err != nil {
		return err
	}
	return beside(ctx, func(ctx context.Context) error { return w.await(ctx, known) }, o.Run)
}

func operate(ctx context.Context, w *world, key string) error {
	if err := w.prepare(ctx, key); err != nil {
		return err
	}
	for _, do := range []scenario{mendSteps, mendOutbox, settleKeys, publishAgain, decide, readJournal} {
		if err := do(ctx, w, key); err != nil {
			return err
		}
	}
	return nil
}

// done is err, or that an operator has not done what was wanted.
func done(what string, ok bool, err error) error {
	if err == nil && !ok {
		err = errors.New("nothing was done")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func mendSteps(ctx context.Context, w *world, key string) error {
	d, err := operator.NewDeadLetters(w.pools["operator"], operator.Inbox, &operator.Options{Schema: w.Schema})
	if err != nil {
		return err
	}
	of := func(name string) operator.Filter { return operator.Filter{Key: key + "-" + name} }
	letters, err := d.List(ctx, of("redriven"), 0, 10)
	if err := done("list", len(letters) == 1, err); err != nil {
		return err
	}
	id := letters[0].ID
	_, is, err := d.Edit(ctx, id, operator.Edit{By: "ann", Payload: []byte(`{"item":"y"}`)})
	if err := done("edit", string(is.Payload) == `{"item":"y"}`, err); err != nil {
		return err
	}
	got, err := d.Redrive(ctx, operator.Filter{IDs: []int64{id}}, nil)
	if err := done("redrive", got[operator.OutcomeRun] == 1, err); err != nil {
		return err
	}
	got, err = d.Redrive(ctx, of("old"), &operator.RedriveOptions{Force: true})
	if err := done("force", got[operator.OutcomeRun] == 1, err); err != nil {
		return err
	}
	n, err := d.Discard(ctx, of("discarded"), func(operator.DeadLetter) error { return nil })
	if err := done("discard", n == 1, err); err != nil {
		return err
	}
	fails := of("fails")
	fails.State = operator.StateRetrying
	n, err = d.RetryNow(ctx, fails)
	if err := done("retry", n == 1, err); err != nil {
		return err
	}
	letters, err = d.List(ctx, fails, 0, 10)
	if err := done("list retrying", len(letters) == 1, err); err != nil {
		return err
	}
	n, err = d.Bury(ctx, operator.ByID(letters[0].ID))
	return done("bury", n == 1, err)
}

func mendOutbox(ctx context.Context, w *world, key string) error {
	d, err := operator.NewDeadLetters(w.pools["operator"], operator.Outbox, &operator.Options{Schema: w.Schema})
	if err != nil {
		return err
	}
	of := operator.Filter{Key: key}
	retrying := of
	retrying.State = operator.StateRetrying
	refused, err := d.List(ctx, retrying, 0, 10)
	if err := done("list refused", len(refused) == 1, err); err != nil {
		return err
	}
	n, err := d.Bury(ctx, operator.ByID(refused[0].ID))
	if err := done("release", n == 1, err); err != nil {
		return err
	}
	dead, err := d.List(ctx, of, 0, 10)
	if err := done("list dead", len(dead) == 3, err); err != nil {
		return err
	}
	n, err = d.Discard(ctx, operator.Filter{IDs: []int64{dead[0].ID}}, nil)
	if err := done("discard", n == 1, err); err != nil {
		return err
	}
	redriven, err := d.Redrive(ctx, of, nil)
	return done("redrive", redriven.Sent() == 2, err)
}

// settleKeys answers one request whose outcome is unknown, and lets the other run again.
func settleKeys(ctx context.Context, w *world, key string) error {
	k, err := operator.NewKeys(w.pools["operator"], &operator.Options{Schema: w.Schema, Why: "it is a test"})
	if err != nil {
		return err
	}
	unknown, err := k.List(ctx, operator.KeyFilter{Scope: key}, operator.KeyRecord{}, 10)
	if err := done("list keys", len(unknown) == 2, err); err != nil {
		return err
	}
	shown, err := k.Find(ctx, operator.KeyRef{Digest: unknown[0].Digest})
	if err != nil {
		return err
	}
	if err := k.Complete(ctx, shown, operator.KeyAnswer{Status: 201, Body: []byte("{}")}, time.Hour); err != nil {
		return err
	}
	if shown, err = k.Find(ctx, operator.KeyRef{Scope: key, Key: "not"}); err != nil {
		return err
	}
	return k.Release(ctx, shown, 0)
}

func publishAgain(ctx context.Context, w *world, key string) error {
	r, err := operator.NewReplayer(w.pools["operator"], &operator.Options{Schema: w.Schema})
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, w.pools["operator"], func(tx pgx.Tx) error {
		kept, err := r.Replay(ctx, tx, operator.ReplayFilter{Key: key})
		return done("replay", len(kept) > 0, err)
	})
	if err != nil {
		return err
	}
	p, err := r.ReplayRange(ctx, operator.ReplayFilter{Key: key, Since: time.Now().Add(-time.Hour)}, nil)
	if err := done("replay range", p.Replayed > 0, err); err != nil {
		return err
	}
	_, err = r.Oldest(ctx)
	return err
}

// decide has one saga rest and go on, one nested in it end, which tells it so, and another
// one undone.
func decide(ctx context.Context, w *world, key string) error {
	n, err := operator.NewInstances(w.pools["operator"], &operator.Options{Schema: w.Schema})
	if err != nil {
		return err
	}
	outer, inner, second := saga.Address{Key: key}, saga.Address{Key: key, Path: "1.1"}, saga.Address{Key: key + "-second", Path: "1.1"}
	for _, d := range []struct {
		at   saga.Address
		verb operator.Verb
		step string
	}{
		{outer, operator.VerbPause, ""}, {outer, operator.VerbResume, ""}, {inner, operator.VerbReject, "flight"},
		{second, operator.VerbSkip, "flight"}, {second, operator.VerbCancel, ""},
	} {
		decision := operator.Decision{Verb: d.verb, Step: d.step, By: "ann", Why: "it is a test"}
		if d.verb == operator.VerbSkip {
			decision.Result = json.RawMessage(`{}`)
		}
		if _, err := n.Decide(ctx, d.at, decision); err != nil {
			return err
		}
	}
	again := operator.Decision{Verb: operator.VerbPause, By: "ann", Why: "it is a test"}
	all, err := n.DecideAll(ctx, operator.InstanceFilter{Key: key}, again, nil)
	if err := done("pause all", all.Decided > 0, err); err != nil {
		return err
	}
	timeline, err := n.Get(ctx, outer)
	return done("show", len(timeline.Journal) == 3, err)
}

// readJournal checks the entries of the journal, and who made them.
func readJournal(ctx context.Context, w *world, key string) error {
	all, err := operator.ReadJournal(ctx, w.pools["operator"], &operator.Options{Schema: w.Schema}, time.Time{}, 0, 100)
	return done("journal", len(all) >= 11 && all[0].Verb == "replay" && all[0].By == all[0].DBUser, err)
}

func look(ctx context.Context, w *world, key string) error {
	if err := w.prepare(ctx, key); err != nil {
		return err
	}
	for _, do := range []scenario{lookAtSteps, lookAtOutbox, lookAtSagas, lookAtAll, locate} {
		if err := do(ctx, w, key); err != nil {
			return err
		}
	}
	return nil
}

func lookAtSteps(ctx context.Context, w *world, key string) error {
	d, err := operator.NewDeadLetters(w.pools["reader"], operator.Inbox, &operator.Options{Schema: w.Schema})
	if err != nil {
		return err
	}
	of := operator.Filter{Key: key + "-redriven"}
	letters, err := d.List(ctx, of, 0, 10)
	if err := done("list", len(letters) == 1, err); err != nil {
		return err
	}
	if _, err := d.Get(ctx, letters[0].ID); err != nil {
		return err
	}
	got, err := d.Preview(ctx, of, nil, nil)
	return done("plan", got[operator.OutcomeRun] == 1, err)
}

func lookAtOutbox(ctx context.Context, w *world, key string) error {
	stats, err := outbox.ReadStats(ctx, w.pools["reader"], w.Schema)
	if err := done("stats", stats.Dead > 0, err); err != nil {
		return err
	}
	d, err := operator.NewDeadLetters(w.pools["reader"], operator.Outbox, &operator.Options{Schema: w.Schema})
	if err != nil {
		return err
	}
	dead, err := d.List(ctx, operator.Filter{Key: key}, 0, 10)
	if err := done("list dead", len(dead) == 2, err); err != nil {
		return err
	}
	if _, err := d.Get(ctx, dead[0].ID); err != nil {
		return err
	}
	refused, err := d.List(ctx, operator.Filter{Key: key, State: operator.StateRetrying}, 0, 10)
	if err := done("list refused", len(refused) == 1, err); err != nil {
		return err
	}
	_, err = operator.ReadJournal(ctx, w.pools["reader"], &operator.Options{Schema: w.Schema}, time.Time{}, 0, 1)
	return err
}

func lookAtSagas(ctx context.Context, w *world, key string) error {
	n, err := operator.NewInstances(w.pools["reader"], &operator.Options{Schema: w.Schema})
	if err != nil {
		return err
	}
	all, err := n.List(ctx, operator.InstanceFilter{Key: key}, saga.Address{}, 10)
	if err := done("list", len(all) == 2, err); err != nil {
		return err
	}
	if _, err := n.Get(ctx, saga.Address{Key: key}); err != nil {
		return err
	}
	live, err := saga.NewManifest(tours).Check(ctx, w.pools["reader"], w.Schema)
	return done("check", len(live) > 0, err)
}

// lookAtAll does what sagamill status does.
func lookAtAll(ctx context.Context, w *world, key string) error {
	all, err := operator.ReadOverview(ctx, w.pools["reader"], &operator.OverviewOptions{Schemas: []string{w.Schema}})
	if err != nil {
		return err
	}
	for _, p := range all[0].Unreadable {
		err = errors.Join(err, p.Err)
	}
	if err == nil && all[0].Denied {
		err = &pgconn.PgError{Code: roletest.Denied, Message: "the version is denied"}
	}
	return done("status", len(all[0].Parts) == 4 && all[0].Version > 0, err)
}

// locate does what sagamill why and the console's page of a message do.
func locate(ctx context.Context, w *world, key string) error {
	schemas, err := migrations.Schemas(ctx, w.pools["reader"])
	if err := done("schemas", len(schemas) == 1 && schemas[0].Readable() && len(schemas[0].SagasDenied) == 0, err); err != nil {
		return err
	}
	l, err := operator.NewLocator(&operator.Options{Schema: w.Schema})
	if err != nil {
		return err
	}
	return pgx.BeginTxFunc(ctx, w.pools["reader"], pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := l.Pin(ctx, tx); err != nil {
			return err
		}
		found, err := l.Outbox(ctx, tx, operator.LocateFilter{Key: key})
		if err := done("locate messages", err == nil && len(found.Messages) > 0, err); err != nil {
			return err
		}
		contents, err := l.Contents(ctx, tx, []int64{found.Messages[0].ID}, 1000)
		if err := done("contents", len(contents) == 1, err); err != nil {
			return err
		}
		in, err := l.Inbox(ctx, tx, operator.LocateFilter{Key: key + "-fails"})
		return done("locate", len(in.Steps) == 1, err)
	})
}
