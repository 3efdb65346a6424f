package main

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
)

// countTrips returns a hook that counts, on each connection, reads that follow a write.
func countTrips(trips *atomic.Int64) func(context.Context, *pgconn.Config, net.Conn) (net.Conn, error) {
	return func(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
		return &countedConn{Conn: conn, trips: trips}, nil
	}
}

type countedConn struct {
	net.Conn
	asked atomic.Bool
	trips *atomic.Int64
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.asked.Store(true)
	return c.Conn.Write(p)
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.asked.Swap(false) {
		c.trips.Add(1)
	}
	return n, err
}
