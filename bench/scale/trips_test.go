package main

import (
	"net"
	"sync/atomic"
	"testing"
)

// A request and a response in several pieces are one round trip; unrequested data are none.
func TestTripsAreCounted(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	var trips atomic.Int64
	conn, err := countTrips(&trips)(t.Context(), nil, here)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	defer there.Close()
	buffer := make([]byte, 8)
	send := func(from net.Conn, to net.Conn) {
		t.Helper()
		sent := make(chan error, 1)
		go func() {
			_, err := from.Write([]byte("x"))
			sent <- err
		}()
		if _, err := to.Read(buffer); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
	send(there, conn)
	if got := trips.Load(); got != 0 {
		t.Errorf("after a message that nobody asked for: %d round trips, want 0", got)
	}
	for range 3 {
		send(conn, there)
		send(conn, there)
		send(there, conn)
		send(there, conn)
	}
	if got := trips.Load(); got != 3 {
		t.Errorf("after three questions: %d round trips, want 3", got)
	}
}
