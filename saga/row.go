package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// Status is where an instance is, for those who look for instances.
type Status string

// The statuses. The last two are final.
const (
	StatusRunning      Status = "running"
	StatusCompensating Status = "compensating"
	StatusPaused       Status = "paused" // by a person, until a person resumes it
	StatusStuck        Status = "stuck"  // a person must look at it
	StatusCompleted    Status = "completed"
	StatusCompensated  Status = "compensated"
)

// ErrNoInstance reports that there is no instance of that scope and key.
var ErrNoInstance = errors.New("saga: no such instance")

// A row is an instance as the table has it.
type row struct {
	flow.Instance
	name     string
	version  int
	hash     string // the beginning of its plan's
	parent   string // name of the saga around it
	status   Status
	reason   string
	revision int
	trace    [2]string // parent and state
	later    bool      // a timer is to do what follows, at once
	now      machine.Millis
}

func scanRow(r pgx.Row) (*row, error) {
	var (
		i        row
		progress string
		state    string
	)
	err := r.Scan(&i.Scope, &i.Key, &i.Path, &i.ID, &i.Root, &i.name, &i.version, &i.hash, &i.parent, &i.status, &i.reason, &progress, &state,
		&i.revision, &i.trace[0], &i.trace[1], &i.now)
	if err != nil {
		return nil, err
	}
	i.State = []byte(state)
	if err := json.Unmarshal([]byte(progress), &i.Progress); err != nil {
		return nil, fmt.Errorf("%w: progress: %w", flow.ErrUnfit, err)
	}
	return &i, nil
}

// lock locks and reads the instance of an address. Its error is an
// [ErrNoInstance] if there is none.
func (q *queries) lock(ctx context.Context, tx pgx.Tx, scope, key, path string) (*row, error) {
	if root := flow.Root(path); path != root {
		if _, err := tx.Exec(ctx, q.lockRoot, scope, key, root); err != nil {
			return nil, fmt.Errorf("saga: lock the outermost instance: %w", sqlschema.Explain(err))
		}
	}
	return found(scanRow(tx.QueryRow(ctx, q.lockInstance, scope, key, path)))
}

// lockWait is, but in tests, how long the work on a message waits for an instance that somebody else
// has locked: messages for other instances share its transaction.
const lockWait = 500 * time.Millisecond

// lockNotAvailable is PostgreSQL's code for a lock that was not to be had in time.
const lockNotAvailable = "55P03"

// errLocked reports an instance that was locked for longer than lockWait.
var errLocked = errors.New("saga: the instance is locked")

// lockSoon is lock, or an errLocked.
func (q *queries) lockSoon(ctx context.Context, tx pgx.Tx, scope, key, path string, wait time.Duration) (*row, error) {
	i, err := q.tryLock(ctx, tx, scope, key, path)
	if !errors.Is(err, ErrNoInstance) {
		return i, err
	}
	if _, err := tx.Exec(ctx, q.limitLock, strconv.FormatInt(wait.Milliseconds(), 10)); err != nil {
		return nil, fmt.Errorf("saga: limit the wait for a lock: %w", err)
	}
	i, err = q.lock(ctx, tx, scope, key, path)
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &refused) && refused.Code == lockNotAvailable:
		return nil, fmt.Errorf("%w: %w", errLocked, err)
	case err != nil:
		return nil, err
	}
	if _, err := tx.Exec(ctx, q.unlimitLock); err != nil {
		return nil, fmt.Errorf("saga: limit the wait for a lock: %w", err)
	}
	return i, nil
}

// tryLock is lock where nobody else has the instance locked, else an [ErrNoInstance].
func (q *queries) tryLock(ctx context.Context, tx pgx.Tx, scope, key, path string) (*row, error) {
	if root := flow.Root(path); path != root {
		tag, err := tx.Exec(ctx, q.tryLockRoot, scope, key, root)
		if err != nil {
			return nil, fmt.Errorf("saga: lock the outermost instance: %w", sqlschema.Explain(err))
		}
		if tag.RowsAffected() == 0 {
			return nil, ErrNoInstance
		}
	}
	return found(scanRow(tx.QueryRow(ctx, q.tryLockInstance, scope, key, path)))
}

func found(i *row, err error) (*row, error) {
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, ErrNoInstance
	case err != nil:
		return nil, fmt.Errorf("saga: read instance: %w", sqlschema.Explain(err))
	}
	return i, nil
}

// insertion are the arguments of sqlInsertInstance.
func (i *row) insertion(m *machine.Machine) ([]any, error) {
	progress, err := i.progress(m)
	if err != nil {
		return nil, err
	}
	return []any{i.Scope, i.Key, i.Path, i.ID, i.Root, i.name, i.version, i.parent, i.status, i.reason, progress, string(i.State),
		i.trace[0], i.trace[1], i.due(m), i.Progress.Phase.Ended(), i.hash}, nil
}

// movement are the arguments of sqlMoveInstance.
func (i *row) movement(m *machine.Machine) ([]any, error) {
	progress, err := i.progress(m)
	if err != nil {
		return nil, err
	}
	return []any{i.Scope, i.Key, i.Path, i.status, i.reason, progress, string(i.State), i.due(m), i.Progress.Phase.Ended(), i.revision}, nil
}

// progress returns the progress as it is stored, and sets what people look for.
func (i *row) progress(m *machine.Machine) (string, error) {
	i.status, i.reason = statusOf(m, &i.Progress)
	data, err := json.Marshal(&i.Progress)
	if err != nil {
		return "", fmt.Errorf("saga: progress: %w", err)
	}
	return string(data), nil
}

func (i *row) due(m *machine.Machine) any {
	if i.later && !i.Progress.Phase.Ended() {
		return machine.Millis(0)
	}
	if due := m.Due(&i.Progress); due > 0 {
		return due
	}
	return nil
}

// statusOf returns what progress comes to, and why, as the table can hold it.
func statusOf(m *machine.Machine, p *machine.Progress) (Status, string) {
	status, reason := standing(m, p)
	return status, clip(reason)
}

func standing(m *machine.Machine, p *machine.Progress) (Status, string) {
	switch {
	case p.Phase.Ended():
		return Status(p.Phase), p.Reason
	case p.Stuck():
		return StatusStuck, m.Why(p)
	case p.Paused:
		return StatusPaused, p.Reason
	default:
		return Status(p.Phase), p.Reason
	}
}
