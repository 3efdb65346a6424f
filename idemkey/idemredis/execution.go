package idemredis

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
)

// errTakenOver is the reason why a response was not kept. A record that Redis has
// lost counts as taken over: its key may have had another owner since.
var errTakenOver = fmt.Errorf("%w, or Redis has lost the record", idemkey.ErrLeaseLost)

// An execution owns one claim for as long as the record has its token.
type execution struct {
	s          *Store
	id         idemkey.Identity
	key, token string
	lease      time.Duration

	open               *openRun      // nil: the handler has no effects outside of the store
	keptTTL, failedTTL time.Duration // of the record, from the end of the run on; 0: since its claim
	keepExpired        time.Duration
}

func (e *execution) Context(ctx context.Context) context.Context { return ctx }

// Commit keeps r. There is nothing to commit: the handler's effects stand
// either way. If Redis does not take r, the error is [idemkey.ErrNotStored] and
// the record stays in progress until its lease lapses; if the record is no longer
// this execution's, it is [idemkey.ErrLeaseLost] as well.
func (e *execution) Commit(ctx context.Context, r idemkey.Response) error {
	return e.keepResponse(ctx, &r)
}

// Reject is Commit: there is nothing to roll back.
func (e *execution) Reject(ctx context.Context, r idemkey.Response) error {
	return e.keepResponse(ctx, &r)
}

// keepResponse tries several times: the handler has run, and a record that is not
// completed would let it run again.
func (e *execution) keepResponse(ctx context.Context, r *idemkey.Response) error {
	header, err := r.MarshalHeader()
	if err == nil {
		err = failpoint.Hit("idemredis/before-save")
	}
	if err != nil {
		return notStoredError(err)
	}
	for try := range saves {
		if try > 0 {
			_ = backoff.Sleep(ctx, savePause)
		}
		var kept bool
		kept, err = e.runOwnerScript(ctx, scriptComplete, int(r.State()), r.Status, header, r.Body, r.KeyID,
			lifeArg(e.keptTTL), milliseconds(e.keepExpired))
		switch {
		case kept:
			e.open.remove(ctx, e.s)
			return failpoint.Hit("idemredis/after-save")
		case err == nil:
			return notStoredError(errTakenOver)
		}
	}
	return notStoredError(err)
}

func notStoredError(cause error) error {
	return fmt.Errorf("idemredis: keep response: %w: %w", idemkey.ErrNotStored, cause)
}

// Release releases the key, unless another owner has it by now. After an error
// the record lapses with its lease.
func (e *execution) Release(ctx context.Context, mode idemkey.ReleaseMode, status int) error {
	how := any(int(idemkey.StateFailed))
	switch mode {
	case idemkey.Forget:
		how = "forget"
	case idemkey.Hold:
		how = int(idemkey.StateUnknown)
	}
	mine, err := e.runOwnerScript(ctx, scriptRelease, how, status, lifeArg(e.failedTTL), milliseconds(e.keepExpired))
	switch {
	case err != nil:
		return fmt.Errorf("idemredis: release record: %w", err)
	case !mine && mode == idemkey.Hold:
		return fmt.Errorf("idemredis: release record: %w", errTakenOver)
	case !mine:
		return nil
	case mode != idemkey.Hold:
		e.open.remove(ctx, e.s)
		return nil
	}
	if e.open == nil {
		e.open = e.s.openRunOf(e.id)
	}
	if _, err := e.open.setEnd(ctx, e.s, 0); err != nil {
		return fmt.Errorf("idemredis: release record: %w", err)
	}
	return nil
}

// Renew starts the lease's time again. The middleware calls it every third of the
// lease while the handler runs. After [idemkey.ErrLeaseLost] another owner has the
// key, or Redis has lost the record, so that another may get it at any time: the
// handler should stop. After any other error the lease is unchanged, or renewed.
func (e *execution) Renew(ctx context.Context) error {
	mine, err := e.runOwnerScript(ctx, scriptRenew, milliseconds(e.lease))
	switch {
	case err != nil:
		return fmt.Errorf("idemredis: renew lease: %w", err)
	case !mine:
		return fmt.Errorf("idemredis: renew lease: %w", idemkey.ErrLeaseLost)
	case e.open != nil:
		_, err = e.open.setEnd(ctx, e.s, e.lease)
	}
	return err
}

// runOwnerScript runs one of the owner's scripts. It reports false if the record does not
// have this execution's token.
func (e *execution) runOwnerScript(ctx context.Context, script *redis.Script, args ...any) (bool, error) {
	n, err := e.s.callScript(ctx, script, e.key, append([]any{e.token}, args...)...).Int()
	return n == 1, err
}

// lifeArg is a life from now on as an argument, empty if a record's life has begun with its claim.
func lifeArg(d time.Duration) any {
	if d == 0 {
		return ""
	}
	return milliseconds(d)
}

// keyless runs a request that is not remembered.
type keyless struct{}

func (keyless) Context(ctx context.Context) context.Context             { return ctx }
func (keyless) Commit(context.Context, idemkey.Response) error          { return nil }
func (keyless) Reject(context.Context, idemkey.Response) error          { return nil }
func (keyless) Release(context.Context, idemkey.ReleaseMode, int) error { return nil }
func (keyless) Renew(context.Context) error                             { return nil }
