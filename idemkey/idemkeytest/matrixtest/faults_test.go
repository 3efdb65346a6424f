//go:build failpoints

package matrixtest

import (
	"context"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/redistest"
)

// killedAt lets the process of the first request die at a point of it.
func killedAt(point string) func(*cell) {
	return func(c *cell) {
		c.got.first = c.send(&c.serve(point+"=kill").instance, c.do).text
		c.died()
	}
}

// died waits for the first process to have ended.
func (c *cell) died() {
	c.Helper()
	select {
	case <-c.first.ended:
	case <-time.After(patience):
		c.Fatal("the server is still alive")
	}
}

// killedReading kills the process while it reads the body.
func killedReading(c *cell) {
	p := c.serve("")
	body, rest := io.Pipe()
	answered := make(chan answer, 1)
	go func() { answered <- post(c.Context(), p.url, c.key, body) }() // ends with the process
	if _, err := io.WriteString(rest, "ord"); err != nil {
		c.Fatal(err)
	}
	p.wait(c.T, saidReading)
	p.kill()
	_ = rest.Close() // the transport waits for its body
	c.got.first = (<-answered).text
}

// killedInQuery kills it while Postgres runs a statement of its handler.
func killedInQuery(c *cell) {
	p := c.serve("")
	first := c.begin(p, doQuery)
	c.until("the statement to run", func() (bool, error) {
		var runs bool
		err := c.direct.pool.QueryRow(c.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE application_name = $1 AND state = 'active' AND query LIKE 'SELECT pg_sleep%')`, c.Name).Scan(&runs)
		return runs, err
	})
	p.kill()
	c.got.first = (<-first).text
}

// killedAnswered kills it when the client has its answer.
func killedAnswered(c *cell) {
	p := c.serve("")
	c.answered(c.send(&p.instance, ""))
	p.kill()
}

// answered notes the answer to the first request, which is the one to replay.
func (c *cell) answered(a answer) {
	c.got.first = a.text
	if c.kept == "" && a.text == "201" {
		c.kept = a.body
	}
}

// waiting starts the first request and waits for its handler to be at work.
func (c *cell) waiting() <-chan answer {
	c.Helper()
	p := c.serve("")
	first := c.begin(p, doWait)
	p.wait(c.T, saidWaiting)
	return first
}

// overtaking sends a retry while the first request is held up. If it runs, its
// response is the one to replay.
func (c *cell) overtaking() {
	c.Helper()
	a := c.retry()
	c.got.soon = a.text
	if a.text == "201" {
		c.kept = a.body
	}
}

// stalledInHandler stops the process while its handler runs, past its lease.
func stalledInHandler(c *cell) {
	first := c.waiting()
	if c.Column != memory { // where the stopped process has to serve the retry
		c.first.signal(syscall.SIGSTOP)
	}
	if c.direct.column.separate {
		c.lapse()
	} else {
		c.lapsed()
	}
	c.overtaking()
	c.first.signal(syscall.SIGCONT)
	c.leave()
	c.answered(<-first)
	if c.direct.column.separate {
		c.ended(idemkey.OutcomeLost)
	}
}

// ended checks what became of the first request, as an operator is told.
func (c *cell) ended(want idemkey.Outcome) {
	c.Helper()
	for { // of a memory, the retry's outcome has come before
		got := c.first.outcome(c.T)
		if c.Column == memory && want == idemkey.OutcomeLost && got == string(idemkey.OutcomeKept) {
			continue
		}
		if got != string(want) {
			c.Errorf("the first request is told to be %q, want %q", got, want)
		}
		return
	}
}

// lapsed waits until the short grace is over, because a locked row cannot be changed, and frees a lock in
// Redis.
func (c *cell) lapsed() {
	c.Helper()
	if c.direct.redis != nil {
		c.forget()
	}
	c.until("the grace to be over", func() (bool, error) {
		var over bool
		err := c.direct.pool.QueryRow(c.Context(), "SELECT NOT EXISTS (SELECT FROM "+c.Schema+".idempotency_key WHERE key = $1 AND lease_until > clock_timestamp())",
			c.key).Scan(&over)
		return over, err
	})
}

// linkPostgres puts a link between the first process and Postgres.
func (c *cell) linkPostgres() *link {
	c.Helper()
	config, err := pgx.ParseConfig(pgtest.URL())
	if err != nil {
		c.Fatal(err)
	}
	l := newLink(c.T, "tcp", net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
	c.via.Postgres = l.addr()
	return l
}

// linkRedis puts one between it and Redis.
func (c *cell) linkRedis() *link {
	c.Helper()
	opts := redistest.Options(c.T)
	l := newLink(c.T, opts.Network, opts.Addr)
	c.via.Redis = l.addr()
	return l
}

// downAtBegin sends the request while a store cannot be reached.
func downAtBegin(to func(*cell) *link) func(*cell) {
	return func(c *cell) {
		to(c).cut()
		c.answered(c.send(&c.serve("").instance, ""))
	}
}

// downInHandler loses a store while the handler runs.
func downInHandler(to func(*cell) *link) func(*cell) {
	return func(c *cell) {
		l := to(c)
		first := c.waiting()
		l.cut()
		c.leave()
		c.answered(<-first)
	}
}

// losesCommit loses the COMMIT or its reply, and the process lives.
func losesCommit(loss pgtest.Loss) func(*cell) {
	return func(c *cell) {
		p, _ := pgtest.NewProxy(c.T)
		c.via.Postgres = p.Addr()
		first := c.waiting()
		p.Lose(loss)
		c.leave()
		c.answered(<-first)
	}
}

// losesSave loses the reply to the script that keeps the response.
func losesSave(c *cell) {
	p, _ := redistest.NewProxy(c.T)
	c.via.Redis = p.Addr()
	first := c.waiting()
	p.Lose(redistest.LoseReply)
	c.leave()
	c.answered(<-first)
	c.ended(idemkey.OutcomeKept)
	if p.Lost() != 1 {
		c.Errorf("%d replies were lost, want 1", p.Lost())
	}
}

// forget lets Redis lose what it has under the key: the record, or the lock.
func (c *cell) forget() {
	c.Helper()
	if n, err := c.direct.redis.Del(c.Context(), c.direct.hash(c.key)).Result(); n != 1 || err != nil {
		c.Errorf("forget: %d keys, %v", n, err)
	}
}

func forgottenInHandler(c *cell) {
	first := c.waiting()
	c.forget()
	c.overtaking()
	c.leave()
	c.answered(<-first)
}

func forgottenAfter(c *cell) {
	c.got.first = c.send(&c.serve("").instance, "").text
	c.forget()
}

// disconnects lets the client go while its handler runs.
func disconnects(c *cell) {
	p := c.serve("")
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	answered := make(chan answer, 1)
	go func() { answered <- post(ctx, p.url, c.key, strings.NewReader("order"), doHeader, doWait) }() // ends with ctx
	p.wait(c.T, saidWaiting)
	cancel()
	c.got.first = (<-answered).text
	p.wait(c.T, saidGone)
	c.leave()
	c.ended(idemkey.OutcomeKept)
}

func panics(c *cell) { c.got.first = c.send(&c.serve("").instance, doPanic).text }

func expires(c *cell) {
	c.got.first = c.send(&c.serve("").instance, "").text
	c.expire()
}

// shortGrace lets a claim end by itself: the row of a running owner is locked.
// A memory's owner must be deaf, since it cannot be stopped alone.
func shortGrace(s *settings) {
	s.Grace = time.Millisecond
	if s.Column == memory {
		s.Deaf, s.Lease = true, 200*time.Millisecond
	}
}

// shortLife is for a memory, whose records expire by the host's clock.
func shortLife(s *settings) {
	if s.Column == memory {
		s.Lease, s.ExecTimeout, s.TTL = time.Second, 5*time.Second, 5*time.Second
	}
}

func external(s *settings) { s.ExternalEffects = true }
