package trips_test

import (
	"net"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/bench/internal/trips"
)

// sendText sends text from one end to the other.
func sendText(t *testing.T, from, to net.Conn, text string) {
	t.Helper()
	buffer := make([]byte, 64)
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write([]byte(text))
		sent <- err
	}()
	for got := 0; got < len(text); {
		n, err := to.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		got += n
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// openCounted returns both ends of a connection whose near end is counted.
func openCounted(t *testing.T) (counter *trips.Counter, near, far net.Conn) {
	t.Helper()
	here, there := net.Pipe()
	counter = &trips.Counter{}
	near, err := counter.CountConn(t.Context(), nil, here)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = near.Close()
		_ = there.Close()
	})
	return counter, near, there
}

// A request and a response in several pieces are one round trip; unrequested data are none.
func TestTripsAreCounted(t *testing.T) {
	t.Parallel()
	counter, near, far := openCounted(t)
	sendText(t, far, near, "x")
	if got := counter.Trips.Load(); got != 0 {
		t.Errorf("after a message that nobody asked for: %d round trips, want 0", got)
	}
	for range 3 {
		sendText(t, near, far, "x")
		sendText(t, near, far, "x")
		sendText(t, far, near, "x")
		sendText(t, far, near, "x")
	}
	if got := counter.Trips.Load(); got != 3 {
		t.Errorf("after three questions: %d round trips, want 3", got)
	}
}

// The end of a transaction counts once, however the bytes arrive. A session within a transaction does not count.
func TestTransactionsAreCounted(t *testing.T) {
	t.Parallel()
	const idle, within = "Z\x00\x00\x00\x05I", "Z\x00\x00\x00\x05T"
	for _, tt := range []struct {
		name string
		sent []string
		want int64
	}{
		{"whole", []string{"data" + idle}, 1},
		{"two in one read", []string{idle + "data" + idle}, 2},
		{"in two reads", []string{"data" + idle[:2], idle[2:] + "data"}, 1},
		{"byte by byte", strings.Split("data"+idle+"d"+idle, ""), 2},
		{"whole after a piece", []string{idle[:3], idle}, 1},
		{"within a transaction", []string{within, "data" + within + "data"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			counter, near, far := openCounted(t)
			for _, text := range tt.sent {
				sendText(t, far, near, text)
			}
			if got := counter.Transactions.Load(); got != tt.want {
				t.Errorf("%d transactions, want %d", got, tt.want)
			}
		})
	}
}

// Each completed statement counts once, however the bytes arrive. Rows that look like such an answer do not count.
func TestStatementsAreCounted(t *testing.T) {
	t.Parallel()
	const none, completed, row = "N", "C\x00\x00\x00\x0eCOMMIT TO\x00", "D\x00\x00\x00\x0bC\x00\x00\x00\x04CC"
	for _, tt := range []struct {
		name string
		sent []string
		want int64
	}{
		{"whole", []string{completed}, 1},
		{"two with a row", []string{completed + row + completed}, 2},
		{"a row", []string{row}, 0},
		{"in two reads", []string{row + completed[:3], completed[3:] + row}, 1},
		{"byte by byte", strings.Split(row+completed+completed+row, ""), 2},
		{"after an answer about TLS", []string{none, completed}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			counter, near, far := openCounted(t)
			for _, text := range tt.sent {
				sendText(t, far, near, text)
			}
			if got := counter.Statements.Load(); got != tt.want {
				t.Errorf("%d statements, want %d", got, tt.want)
			}
		})
	}
}
