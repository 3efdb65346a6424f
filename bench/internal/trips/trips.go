// Package trips counts the round trips and the transactions of database connections, where the client sees them.
// The server's own counters lag by up to a second.
package trips

import (
	"bytes"
	"context"
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
