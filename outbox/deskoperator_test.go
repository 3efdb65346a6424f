package outbox_test

import (
	"context"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
)

// Package variables are set before any test runs.
var _ = setDesk()

func setDesk() bool {
	outbox.ErrDeskInvalid = operator.ErrInvalid
	outbox.ErrNoDeadLetter, outbox.ErrNotKept, outbox.ErrMoved = operator.ErrNoDeadLetter, operator.ErrNotKept, operator.ErrMoved
	outbox.MaxList, outbox.MaxReplay = operator.MaxList, operator.MaxReplay
	outbox.OpenDesk = func(db *pgxpool.Pool, schema string) (outbox.Desk, error) {
		o := &operator.Options{Schema: schema}
		letters, err := operator.NewDeadLetters(db, operator.Outbox, o)
		if err != nil {
			return nil, err
		}
		locator, err := operator.NewLocator(o)
		if err != nil {
			return nil, err
		}
		replayer, err := operator.NewReplayer(db, o)
		return desk{letters, locator, replayer}, err
	}
	return true
}

// A desk is an outbox.Desk made of package operator.
type desk struct {
	letters  *operator.DeadLetters
	locator  *operator.Locator
	replayer *operator.Replayer
}

func (d desk) List(ctx context.Context, f outbox.DeadFilter, after int64, limit int) ([]outbox.DeadLetter, error) {
	all, err := d.letters.List(ctx, as[operator.Filter](f), after, limit)
	return as[[]outbox.DeadLetter](all), err
}

func (d desk) Get(ctx context.Context, id int64) (outbox.DeadLetter, error) {
	l, err := d.letters.Get(ctx, id)
	return as[outbox.DeadLetter](l), err
}

func (d desk) Count(ctx context.Context, f outbox.DeadFilter) (int, error) {
	return d.letters.Count(ctx, as[operator.Filter](f))
}

func (d desk) Redrive(ctx context.Context, f outbox.DeadFilter) (int, error) {
	done, err := d.letters.Redrive(ctx, as[operator.Filter](f), nil)
	return done.Sent(), err
}

func (d desk) Discard(ctx context.Context, f outbox.DeadFilter) (int, error) {
	return d.letters.Discard(ctx, as[operator.Filter](f), nil)
}

func (d desk) Bury(ctx context.Context, ids ...int64) (int, error) {
	return d.letters.Bury(ctx, operator.ByID(ids...))
}

func (d desk) Pin(ctx context.Context, tx pgx.Tx) error { return d.locator.Pin(ctx, tx) }

func (d desk) Locate(ctx context.Context, tx pgx.Tx, f outbox.LocateFilter) (outbox.FoundMessages, error) {
	found, err := d.locator.Outbox(ctx, tx, as[operator.LocateFilter](f))
	return as[outbox.FoundMessages](found), err
}

func (d desk) ListLogged(ctx context.Context, tx pgx.Tx, f outbox.ReplayFilter) ([]outbox.LoggedMessage, error) {
	all, err := d.replayer.List(ctx, tx, as[operator.ReplayFilter](f))
	return as[[]outbox.LoggedMessage](all), err
}

func (d desk) Replay(ctx context.Context, tx pgx.Tx, f outbox.ReplayFilter) ([]outbox.LoggedMessage, error) {
	all, err := d.replayer.Replay(ctx, tx, as[operator.ReplayFilter](f))
	return as[[]outbox.LoggedMessage](all), err
}

func (d desk) ReplayRange(ctx context.Context, f outbox.ReplayFilter, opts *outbox.RangeOptions) (outbox.RangeProgress, error) {
	var o *operator.RangeOptions
	if opts != nil {
		o = &operator.RangeOptions{Rate: opts.Rate, DryRun: opts.DryRun}
		if opts.Progress != nil {
			o.Progress = func(p operator.RangeProgress) error { return opts.Progress(as[outbox.RangeProgress](p)) }
		}
	}
	p, err := d.replayer.ReplayRange(ctx, as[operator.ReplayFilter](f), o)
	return as[outbox.RangeProgress](p), err
}

func (d desk) Oldest(ctx context.Context) (time.Time, error) { return d.replayer.Oldest(ctx) }

// as returns from as a T: a struct has the fields of the same names.
func as[T any](from any) (to T) {
	copyValue(reflect.ValueOf(&to).Elem(), reflect.ValueOf(from))
	return to
}

func copyValue(to, from reflect.Value) {
	switch {
	case from.Type().ConvertibleTo(to.Type()):
		to.Set(from.Convert(to.Type()))
	case from.Kind() == reflect.Slice && from.IsNil(), from.Kind() == reflect.Pointer && from.IsNil():
	case from.Kind() == reflect.Slice:
		to.Set(reflect.MakeSlice(to.Type(), from.Len(), from.Len()))
		for i := range from.Len() {
			copyValue(to.Index(i), from.Index(i))
		}
	case from.Kind() == reflect.Pointer:
		to.Set(reflect.New(to.Type().Elem()))
		copyValue(to.Elem(), from.Elem())
	default:
		for i := range to.NumField() {
			if field := from.FieldByName(to.Type().Field(i).Name); field.IsValid() {
				copyValue(to.Field(i), field)
			}
		}
	}
}
