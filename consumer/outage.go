package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/lazytx"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/testsignal"
)

// A Pauser is a subscriber that can hand its queues over to other consumers and take them again later, as that of
// package rabbitmq. With it a [Consumer] that loses its database pauses its topics. With any other subscriber it nacks
// what it cannot decide.
type Pauser interface {
	// Pause gives all unsettled messages of topic back to the broker, in one step and in their order, and consumes
	// nothing of topic until Resume. When it returns, the consumer gets no further message of topic, and acks and nacks
	// of messages that it got before have no effect.
	Pause(topic string)
	// Resume ends the effect of Pause.
	Resume(topic string)
}

const (
	// answerLimit is how long the database may be silent, while deliveries are in hand, before it is asked.
	answerLimit = time.Second

	// askLimit is how long the answer to that may take, with the time to connect.
	askLimit = 1500 * time.Millisecond

	// askPause is the time between two questions while the database is lost.
	askPause = time.Second

	// handOverEvery is the least time between the beginnings of two hand-overs; up to handOverJitter is added. So a
	// path that comes and goes hands the queues over at most six times a minute. A pause itself ends with the outage,
	// so that no process waits after an outage that all of them had.
	handOverEvery  = 10 * time.Second
	handOverJitter = 5 * time.Second
)

// errReadOnly reports a server that answers and cannot store anything, such as a standby.
var errReadOnly = errors.New("consumer: the database is read-only")

// An outageWatch hands the queues of a consumer over while the database is lost. The other stages note each answer of
// the database. The watch asks by itself only if they have noted none for answerLimit while deliveries were in hand.
type outageWatch struct {
	pauser Pauser // nil: the subscriber cannot pause, and nothing is watched
	topics []string
	ask    func(ctx context.Context, fresh bool) error // fresh: on a new connection
	forget func()                                      // closes the connection of ask
	log    *slog.Logger

	base     time.Time
	answered atomic.Int64  // when the database answered last, since base
	failed   atomic.Bool   // a delivery has failed since then with an error of an outage
	pauses   atomic.Uint64 // how often the consumer was paused
	paused   atomic.Bool
	next     time.Time // before which the queues are not handed over again

	signals struct {
		asked  testsignal.Signal[error] // result of a question
		paused testsignal.Signal[bool]
	}
}

func newOutageWatch(sub any, topics []string, db *pgxpool.Pool, log *slog.Logger) *outageWatch {
	a := &asker{db: db}
	w := &outageWatch{topics: topics, ask: a.askDatabase, forget: a.closeConnection, log: log, base: time.Now()}
	w.pauser, _ = sub.(Pauser)
	return w
}

// noteAnswer notes that the database has answered a statement.
func (w *outageWatch) noteAnswer() {
	w.answered.Store(int64(time.Since(w.base)))
	if w.failed.Load() {
		w.failed.Store(false)
	}
}

// noteFailure notes that a delivery has failed with err.
func (w *outageWatch) noteFailure(err error) {
	if isUnavailable(err) || isNoLogin(err) {
		w.failed.Store(true)
	}
}

// canPause reports whether the queues are handed over while the database is lost.
func (w *outageWatch) canPause() bool { return w.pauser != nil }

// isPaused reports whether the queues are handed over now.
func (w *outageWatch) isPaused() bool { return w.paused.Load() }

// errHandedOver reports that nothing was recorded of a lost attempt, because its message was given back to the broker.
var errHandedOver = errors.New("consumer: the queue was handed over, and another process gets the message")

// hasHandedOver reports whether e was given back to the broker since it arrived. If e has not begun, it must not begin:
// another process may be at later messages of its key.
func (w *outageWatch) hasHandedOver(e boardEntry) bool {
	return e.msg != nil && e.pauses != w.pauses.Load()
}

// runLoop watches until ctx ends.
func (w *outageWatch) runLoop(ctx context.Context, b *board) {
	defer w.resumeTopics() // a later Run may use the subscriber
	for {
		select {
		case <-b.arrived:
			w.watchDeliveries(ctx, b)
		case <-ctx.Done():
			return
		}
	}
}

// watchDeliveries watches until nothing is in hand, or ctx ends.
func (w *outageWatch) watchDeliveries(ctx context.Context, b *board) {
	defer w.forget()
	for ctx.Err() == nil {
		since, busy := b.busySince()
		if !busy {
			return
		}
		if answered := w.base.Add(time.Duration(w.answered.Load())); answered.After(since) {
			since = answered
		}
		if wait := time.Until(since.Add(answerLimit)); wait > 0 {
			_ = backoff.Sleep(ctx, wait)
			continue
		}
		err := w.askOnce(ctx, w.failed.Load())
		switch {
		case ctx.Err() != nil:
			return
		case w.isLost(err) && time.Now().Before(w.next):
			_ = backoff.Sleep(ctx, askPause)
		case w.isLost(err):
			w.handOver(ctx, b, err)
		default:
			w.answered.Store(int64(time.Since(w.base)))
		}
	}
}

// askOnce asks the database whether it is there and can be written to. It returns an error at the latest after
// askLimit.
func (w *outageWatch) askOnce(ctx context.Context, fresh bool) error {
	limited, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	err := guard.Call(func() error { return w.ask(limited, fresh) }) // of the pool's hooks
	w.signals.asked.Send(err)
	return err
}

// isLost reports whether err, the answer to a question, means that the database is lost. If only a new connection
// fails, because of a limit, a password or a name, the pool's connections may work. The database is then lost only if a
// delivery has failed as well.
func (w *outageWatch) isLost(err error) bool {
	code := sqlState(err)
	var name *net.DNSError
	switch {
	case err == nil:
		return false
	case errors.Is(err, errHook), errors.As(err, &name): // only a new connection needs them
		return w.failed.Load()
	case code == "", pg.IsAway(err) && !strings.HasPrefix(code, "53"):
		return true
	}
	return w.failed.Load()
}

// handOver pauses the topics until the database answers again. Deliveries that have not begun are dropped. Those that
// have begun are old copies from now on, as after any lost channel: their transactions end as they can.
func (w *outageWatch) handOver(ctx context.Context, b *board, cause error) {
	began := time.Now()
	w.next = began.Add(handOverEvery + rand.N(handOverJitter))
	w.pauses.Add(1)
	w.paused.Store(true)
	w.log.ErrorContext(ctx, "consumer: the database is lost, so the queues are handed over to other processes", "topics", w.topics, "cause", sqlschema.Explain(cause))
	dropped := b.dropWaiting()
	w.eachTopic(ctx, "Pause", w.pauser.Pause)
	for _, e := range dropped {
		e.msg.Nack() // without an effect at the broker
	}
	w.signals.paused.Send(true)
	for backoff.Sleep(ctx, askPause) == nil {
		if w.askOnce(ctx, true) == nil {
			w.noteAnswer()
			w.resumeTopics()
			w.log.InfoContext(ctx, "consumer: the database answers, and the queues are consumed again", "topics", w.topics, "paused", time.Since(began).Round(time.Millisecond))
			return
		}
	}
}

// resumeTopics ends a pause, if there is one.
func (w *outageWatch) resumeTopics() {
	if !w.paused.Swap(false) {
		return
	}
	w.eachTopic(context.Background(), "Resume", w.pauser.Resume)
	w.signals.paused.Send(false)
}

// eachTopic calls do for all topics at the same time: a broker that does not answer delays each call.
func (w *outageWatch) eachTopic(ctx context.Context, name string, do func(topic string)) {
	var calls sync.WaitGroup
	for _, topic := range w.topics {
		calls.Go(func() { guard.Hook(ctx, w.log, "consumer: Pauser: "+name, func() { do(topic) }) })
	}
	calls.Wait()
}

// sqlReadAccess tells whether this session can write. In recovery the answer is on as well.
const sqlReadAccess = `SHOW transaction_read_only`

// An asker asks the database on a connection of its own, because a pool whose connections all run slow handlers looks
// like an outage. It keeps the connection for further questions. One goroutine uses it.
type asker struct {
	db   *pgxpool.Pool
	conn *pgx.Conn
}

// askDatabase returns nil if the server answers and can be written to. A kept connection may have been closed by
// something in between, so only a new one says that the server is away.
func (a *asker) askDatabase(ctx context.Context, fresh bool) error {
	if fresh {
		a.closeConnection()
	}
	kept := a.conn != nil
	err := a.readAccess(ctx)
	if err != nil && kept && ctx.Err() == nil {
		err = a.readAccess(ctx)
	}
	if isNoLogin(err) || errors.Is(err, errHook) { // others may have taken the last connection: those of the pool may work
		if a.readOn(ctx, a.db) == nil {
			return nil
		}
	}
	return err
}

// errHook reports that a hook of the pool's configuration has failed.
var errHook = errors.New("consumer: hook of the pool")

// readOn returns nil if db can be written to.
func (a *asker) readOn(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) error {
	var readOnly string
	err := db.QueryRow(ctx, sqlReadAccess, pgx.QueryExecModeSimpleProtocol).Scan(&readOnly)
	if err == nil && readOnly != "off" {
		err = errReadOnly
	}
	return err
}

func (a *asker) readAccess(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			a.closeConnection()
		}
	}()
	if a.conn == nil {
		if a.conn, err = a.connect(ctx); err != nil {
			return err
		}
	}
	return a.readOn(ctx, a.conn)
}

// connect connects as the pool does.
func (a *asker) connect(ctx context.Context) (*pgx.Conn, error) {
	config := a.db.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, fmt.Errorf("%w: BeforeConnect: %w", errHook, err)
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err == nil && config.AfterConnect != nil {
		if err := config.AfterConnect(ctx, conn); err != nil {
			lazytx.Cut(conn)
			return nil, fmt.Errorf("%w: AfterConnect: %w", errHook, err)
		}
	}
	return conn, err
}

// closeConnection closes the connection without telling the server, which may be cut off and would make it wait.
func (a *asker) closeConnection() {
	if a.conn != nil {
		lazytx.Cut(a.conn)
		a.conn = nil
	}
}
