package consumer

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/txguard"
)

// A Call has an effect outside the database, such as a charge at a payment provider, and returns its result. It
// holds no transaction, no lock and no connection. key is [Delivery.EffectKey], the same for every attempt: send it
// along, as an idempotency key or as a reference that [Verify] can ask for. ctx ends after the step's Timeout.
//
// It must make one request only. Switch off the automatic retries of a client, above all if the provider does not
// honour keys. net/http retries requests with a header Idempotency-Key, unless their GetBody is set to nil.
//
// A business outcome, such as a declined card, is a result and no error. After an error, a panic or the end of ctx
// the effect is in doubt, unless the error is a [NotDone]. A [Terminal] or [Park] error makes the message a dead
// letter, in doubt or not by the same rule.
type Call[T, R any] func(ctx context.Context, in Message[T], key string) (R, error)

// A Verify asks the other system about the calls with key, and has no effect itself. found says that there was one.
// result is then the same that the call returned or would have returned.
type Verify[T, R any] func(ctx context.Context, in Message[T], key string) (result R, found bool, err error)

// A Record commits the result of a call: it is a [Handler] that is given the result. If it fails, the effect is in
// doubt and another attempt follows.
type Record[T, R any] func(ctx context.Context, tx pgx.Tx, in Message[T], result R, emit Emit) error

// An effect is an Effect without its types.
type effect struct {
	call   func(ctx context.Context, d Delivery, body any) (any, error)
	verify func(ctx context.Context, d Delivery, body any) (any, bool, error)
	record func(ctx context.Context, tx pgx.Tx, d Delivery, body, result any, emit Emit) error
}

// Effect returns an Input that hands messages of topic to call, outside of any transaction, and its result to record.
// Decoding and type are as for [On].
//
// Each attempt is counted, and marked as in doubt, in a commit before call is entered. If the process dies after that,
// another one goes on when the attempt's lease is over: the step's Timeout, twice that if verify is asked first, and
// some seconds. A redelivery or another instance does not make it sooner.
//
// An attempt after one that is in doubt depends on verify:
//
//   - With nil, it makes the call again. That is right only for a provider that honours idempotency keys.
//   - Otherwise it asks verify first. A result that verify finds is recorded, without a call. A not-found answer is
//     trusted once the step's Settle has passed since the end of the call in doubt; until then verify is asked again.
//     After the last attempt verify is asked once more, so that a dead letter is in doubt only if verify failed.
//
// Each attempt at a replayed message ([outbox.HeaderReplayed]) is in doubt as well, and so is each attempt of a step
// with AskFirst: the database may have been restored to an earlier time and have forgotten a call. Without a verify
// the call is made again, so that the provider's keys have to last as long as a replay can come later.
//
// So at most MaxAttempts calls are made, process deaths included, and their effect happens once. That always holds at
// a provider that honours keys. At another provider it holds unless a request takes longer than Settle to have its
// effect, counted from the end of the call here. A process that was suspended for longer than its lease makes no call
// when it wakes, and its result is dropped; but a request that it was about to write is still sent. All this rests on
// a database that forgets no commit: see AskFirst for one that may.
//
// The delivery is acked at the end of its first attempt, however that ended. A compensation that comes meanwhile cancels
// the action if every attempt ended with [NotDone]; otherwise it waits. CancelParked, which would cancel in any case, is
// refused for such a step.
func Effect[T, R any](topic string, call Call[T, R], verify Verify[T, R], record Record[T, R]) Input {
	typed := func(d Delivery, body any) Message[T] { return Message[T]{Delivery: d, Body: *body.(*T)} }
	e := &effect{}
	if call != nil {
		e.call = func(ctx context.Context, d Delivery, body any) (any, error) {
			return call(ctx, typed(d, body), d.EffectKey())
		}
	}
	if verify != nil {
		e.verify = func(ctx context.Context, d Delivery, body any) (any, bool, error) {
			return verify(ctx, typed(d, body), d.EffectKey())
		}
	}
	if record != nil {
		e.record = func(ctx context.Context, tx pgx.Tx, d Delivery, body, result any, emit Emit) error {
			r, _ := result.(R) // a nil interface is no R, and is its zero value
			return record(ctx, tx, typed(d, body), r, emit)
		}
	}
	return Input{Topic: topic, Type: topic, body: reflect.TypeFor[T](), decode: decodeAs[T], effect: e}
}

// ErrNotDone marks an error of a call that is known to have had no effect.
var ErrNotDone = errors.New("consumer: not done")

type notDoneError struct{ err error }

func (e notDoneError) Error() string { return e.err.Error() }

func (e notDoneError) Unwrap() []error { return []error{ErrNotDone, e.err} }

// NotDone wraps the error of a [Call] that is known to have had no effect and to have none later. Examples are a
// refused connection, or an answer that excludes an effect. The next attempt then calls without asking. It speaks of
// one call: a doubt of an earlier attempt stays, unless Verify has cleared it. Together with [Terminal] or [Park],
// in either order, the message is a dead letter that is not in doubt. nil stays nil.
func NotDone(err error) error {
	if err == nil {
		return nil
	}
	return notDoneError{err}
}

func (s *Step) hasEffect() bool { return s.Action.effect != nil || s.Compensation.effect != nil }

// missingFunction names the functions that in needs and does not have.
func (in *Input) missingFunction() string {
	switch {
	case in.effect != nil && (in.effect.call == nil || in.effect.record == nil):
		return "Effect needs a call and a record"
	case slices.Contains(in.Codecs, nil):
		return "Codecs has one that is nil"
	case in.anyType && in.run == nil:
		return "FromWatermill needs a handler, and a topic for what it produces"
	case in.decode != nil && in.effect == nil && in.run == nil:
		return "On and OnBytes need a handler"
	}
	return ""
}

// checkInputs returns an error that names the field, as withDefaults does.
func (s *Step) checkInputs() error {
	if what := s.Action.missingFunction(); what != "" {
		return fmt.Errorf("step %q: Action: %s", s.Name, what)
	}
	if what := s.Compensation.missingFunction(); what != "" {
		return fmt.Errorf("step %q: Compensation: %s", s.Name, what)
	}
	switch {
	case s.Settle != 0 && !s.hasEffect():
		return fmt.Errorf("step %q: Settle: it is for an Effect, and the step has none", s.Name)
	case s.AskFirst && !s.Action.hasVerify() && !s.Compensation.hasVerify():
		return fmt.Errorf("step %q: AskFirst: it is for an Effect with a verify, and the step has none", s.Name)
	case s.CancelParked && s.Action.effect != nil:
		return fmt.Errorf("step %q: CancelParked: the action is an Effect, and what is parked of it may have happened", s.Name)
	case s.Settle < 0 || s.Settle > MaxTimeout:
		return fmt.Errorf("step %q: Settle: %s is not between 0 and %s", s.Name, s.Settle, MaxTimeout)
	}
	return nil
}

// sqlReadDoubt reads, under the lock of sqlLockParked, whether an earlier attempt may have had its effect ($1: the
// parked message), and for how many more microseconds the provider may be at work on it. That is until $3 after its
// call has ended, or, if its end was not seen, until $2 after its lease began. A message for which no call has begun
// since it was redriven, or since it had to wait, no longer knows which: then it is $2 after it died or arrived. The
// number of takes says nothing, since a take may have led to no call.
//
// The third column is for how many more microseconds a forgotten call may be under way: until $2 after the message
// arrived or was redriven. The fourth is whether the message has waited for the rest of such a time. The fifth is whether
// all earlier entries are known to have had no effect.
const sqlReadDoubt = `
SELECT in_doubt,
	(extract(epoch FROM last_at + CASE
		WHEN reason = 'unsettled' THEN $3::bigint
		WHEN reason IN ('calling', 'waits-for-action', 'waits-for-order') OR redriven_at > last_at THEN $2::bigint
		ELSE $3::bigint END * interval '1 microsecond' - clock_timestamp()) * 1000000)::bigint,
	(extract(epoch FROM coalesce(redriven_at, first_at) + $2::bigint * interval '1 microsecond' - clock_timestamp()) * 1000000)::bigint,
	reason = 'unsettled', not_done OR attempts = 1 AND round = 0
FROM {schema}.parked
WHERE id = $1`

// sqlLeaseDelivery parks a delivery before its first call, under the lock of the inbox row. An existing copy, such
// as that of a compensation that has waited for the action, wins: then no row is returned, and no call is made.
// sqlReadOther tells whether that copy is the same message.
const sqlLeaseDelivery = `
INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload,
	reason, error, stack, attempts, due_at, in_doubt)
VALUES ('retrying', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, clock_timestamp() + $15 * interval '1 microsecond', true)
ON CONFLICT (scope, key, step, n, kind) WHERE state = 'retrying' DO NOTHING
RETURNING id`

// sqlReadOther reads, under the lock of the inbox row, whether the retrying copy has another payload than $6 is the
// digest of.
const sqlReadOther = `
SELECT coalesce(digest, sha256(payload)) <> $6
FROM {schema}.parked
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND kind = $5 AND state = 'retrying'`

// sqlLeaseParked leases a parked copy, under its lock. No other instance takes the message before the lease is over,
// unless this transaction rolls back.
var sqlLeaseParked = txguard.MustChange(`
UPDATE {schema}.parked
SET reason = 'calling', in_doubt = true, not_done = false, last_at = clock_timestamp(), due_at = clock_timestamp() + $2 * interval '1 microsecond',
	` + inbox.SQLKeepFailure + `
WHERE id = $1`)

// sqlSetDoubt records whether the message that was just parked may have had its effect ($2), and whether every entry so
// far is known to have had none ($4). $3 moves last_at of a retrying message ahead by microseconds: Settle after last_at
// is then not before a call that verify could not be asked about has settled.
var sqlSetDoubt = txguard.MustChange(`
UPDATE {schema}.parked
SET in_doubt = $2, not_done = $4, last_at = last_at + CASE state WHEN 'retrying' THEN $3::bigint ELSE 0 END * interval '1 microsecond'
WHERE id = $1`)

// sqlPostpone makes an attempt that asked verify too early due when the call in doubt has settled, $2 from now. It
// does not count as an attempt. last_at becomes the end of that call, $3 (Settle) before it has settled: by that the
// next attempt knows that it has. Both times come from one look at the clock.
var sqlPostpone = txguard.MustChange(`
UPDATE {schema}.parked
SET attempts = attempts - 1, reason = 'unsettled', due_at = t.now + $2::bigint * interval '1 microsecond',
	last_at = t.now + ($2::bigint - $3::bigint) * interval '1 microsecond'
FROM (SELECT clock_timestamp() AS now) AS t
WHERE id = $1`)

type effectQueries struct {
	readDoubt, leaseDelivery, readOther, leaseParked, setDoubt, postpone string
}

func newEffectQueries(schema string) effectQueries {
	bind := func(statement string) string { return sqlschema.Bind(schema, statement) }
	return effectQueries{
		readDoubt: bind(sqlReadDoubt), leaseDelivery: bind(sqlLeaseDelivery), readOther: bind(sqlReadOther), leaseParked: bind(sqlLeaseParked),
		setDoubt: bind(sqlSetDoubt), postpone: bind(sqlPostpone),
	}
}
