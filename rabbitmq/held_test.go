package rabbitmq

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// A recordingConn keeps what is written, or fails each write with err.
type recordingConn struct {
	net.Conn
	writes []string
	err    error
	closed bool
}

func (c *recordingConn) Write(b []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	c.writes = append(c.writes, string(b))
	return len(b), nil
}

func (c *recordingConn) SetWriteDeadline(time.Time) error { return nil }

func (c *recordingConn) Close() error {
	c.closed = true
	return nil
}

// write writes each text to d, which must take it.
func write(t *testing.T, d *deadlineConn, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if n, err := d.Write([]byte(text)); n != len(text) || err != nil {
			t.Errorf("Write of %d bytes = %d, %v", len(text), n, err)
		}
	}
}

func TestHeldWritesAreSentTogether(t *testing.T) {
	t.Parallel()
	c := &recordingConn{}
	d := &deadlineConn{Conn: c, timeout: time.Hour}
	want := func(after string, writes ...string) {
		t.Helper()
		if !slices.Equal(c.writes, writes) {
			t.Errorf("after %s: %d writes %.60q, want %.60q", after, len(c.writes), c.writes, writes)
		}
		c.writes = nil
	}
	write(t, d, "a", "b")
	want("two writes that nobody holds back", "a", "b")
	d.holdWrites()
	write(t, d, "c", "d")
	want("two writes that are held back")
	d.holdWrites()
	write(t, d, "e")
	d.releaseWrites()
	want("the release of one of two", "cde")
	write(t, d, "f")
	want("a write that the other holds back")
	large := strings.Repeat("g", maxHeldBytes)
	write(t, d, large)
	want("a write for which there is no room", "f", large)
	write(t, d, "h")
	d.releaseWrites()
	want("the release", "h")
	write(t, d, "i")
	want("a write that nobody holds back", "i")
}

// The client counts what is held back as written. So it must lose the connection if that cannot be sent.
func TestHeldWritesThatFailCloseTheConnection(t *testing.T) {
	t.Parallel()
	c := &recordingConn{err: errors.New("broken pipe")}
	d := &deadlineConn{Conn: c, timeout: time.Hour}
	d.holdWrites()
	write(t, d, "a")
	d.releaseWrites()
	if !c.closed {
		t.Error("the connection is open after a held write has failed")
	}
}
