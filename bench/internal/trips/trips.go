// Package trips counts the round trips, the statements and the transactions of database connections, where the client
// sees them. The server's own counters lag by up to a second, and its extension pg_stat_statements does not count a
// prepared BEGIN, COMMIT or SAVEPOINT that is executed again.
package trips

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
)

// readyIdle is the message ReadyForQuery of a session that is in no transaction. The server sends it at the end of
// each transaction, also of one that only reads or that is a statement alone.
var readyIdle = []byte("Z\x00\x00\x00\x05I")

// A Counter counts for all connections that its method CountConn has wrapped. The zero value is ready to use.
type Counter struct {
	Trips        atomic.Int64 // reads that follow a write
	Statements   atomic.Int64 // statements that the server has completed
	Transactions atomic.Int64 // transactions that have ended
}

// CountConn is a hook for the field AfterNetConnect of a connection's configuration.
func (c *Counter) CountConn(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
	return &countedConn{Conn: conn, counter: c}, nil
}

type countedConn struct {
	net.Conn
	counter *Counter
	asked   atomic.Bool
	tail    []byte // the last bytes read, fewer than readyIdle has; only the reader uses them
	begun   bool   // a message was read
	head    []byte // the first bytes of a message that was not read whole
	rest    int    // bytes of a message that are still to be read
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.asked.Store(true)
	return c.Conn.Write(p)
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		if c.asked.Swap(false) {
			c.counter.Trips.Add(1)
		}
		c.countReady(p[:n])
		c.countCompleted(p[:n])
	}
	return n, err
}

// countReady counts the messages readyIdle in p, and the one that began in an earlier read.
func (c *countedConn) countReady(p []byte) {
	const most = 5 // bytes of an incomplete readyIdle
	edge := append(c.tail, p[:min(len(p), most)]...)
	c.counter.Transactions.Add(int64(bytes.Count(p, readyIdle)))
	if len(p) < most {
		c.counter.Transactions.Add(int64(bytes.Count(edge, readyIdle)))
		p = edge
	} else if bytes.Contains(edge, readyIdle) {
		c.counter.Transactions.Add(1)
	}
	c.tail = append(c.tail[:0], p[max(0, len(p)-most):]...)
}

// headLength is how many bytes of a message say what it is, and how long.
const headLength = 5

// countCompleted counts the messages CommandComplete in p. Each message has a byte for its type, and four for its
// length. Only the answer to a request for TLS is a byte alone.
func (c *countedConn) countCompleted(p []byte) {
	if !c.begun && p[0] == 'N' {
		p = p[1:]
	}
	c.begun = true
	for len(p) > 0 {
		skip := min(c.rest, len(p))
		c.rest, p = c.rest-skip, p[skip:]
		take := min(headLength-len(c.head), len(p))
		c.head, p = append(c.head, p[:take]...), p[take:]
		if len(c.head) < headLength {
			return
		}
		if c.head[0] == 'C' {
			c.counter.Statements.Add(1)
		}
		c.rest = int(binary.BigEndian.Uint32(c.head[1:])) - (headLength - 1)
		c.head = c.head[:0]
	}
}
