package rabbitcluster

import (
	"io"
	"net"
	"strconv"
	"testing"
	"time"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// join returns both ends of a connection from node 0 to node 1, and the network.
func join(t *testing.T) (near, far net.Conn, n *network, l *link) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	n = newNetwork()
	if l, err = listenForLink(n, 0, 1, listener.Addr().String); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.closeNetwork()
		l.closeLink()
	})
	near = open(t, l)
	if far, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	return near, far, n, l
}

// open opens a connection through l.
func open(t *testing.T, l *link) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(l.listenPort()))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func write(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// read checks that text is what arrives next.
func read(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v; want %q", got, err, text)
	}
}

// readEnd checks that the connection has ended, and that nothing came before.
func readEnd(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
		t.Fatalf("read %q, %v; want the end", rest, err)
	}
}

// cutOneWay cuts what node 0 says to node 1.
func cutOneWay(cut *[Size][Size]bool) { cut[0][1] = true }

func mended(cut *[Size][Size]bool) { *cut = [Size][Size]bool{} }

// A direction that is cut holds what is sent, and its end; the other one passes.
func TestALinkHoldsOneDirection(t *testing.T) {
	t.Parallel()
	near, far, n, _ := join(t)
	write(t, near, "before")
	read(t, far, "before")
	n.changeCuts(cutOneWay)
	write(t, near, "held")
	near.(*net.TCPConn).CloseWrite()
	write(t, far, "passes")
	read(t, near, "passes")
	passed := make(chan byte, 1)
	go func() { // ends with far
		var first [1]byte
		if _, err := far.Read(first[:]); err == nil {
			passed <- first[0]
		}
		close(passed)
	}()
	for range 100 { // each is a chance for what must not pass
		write(t, far, "more")
		read(t, near, "more")
	}
	select {
	case b := <-passed:
		t.Fatalf("%q passed the cut", b)
	default:
	}
	n.changeCuts(mended)
	if b := <-passed; b != 'h' {
		t.Fatalf("after the cut %q arrived, want what was held", b)
	}
	read(t, far, "eld")
	readEnd(t, far)
}

// A connection that is opened while one direction is cut waits, and is closed when the cut is mended: its
// node tries again.
func TestALinkDelaysAConnection(t *testing.T) {
	t.Parallel()
	near, far, n, l := join(t)
	n.changeCuts(func(cut *[Size][Size]bool) { cut[1][0] = true })
	late := open(t, l)
	write(t, near, "passes")
	read(t, far, "passes")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.ReadAll(late)
	}()
	for range 100 {
		write(t, near, "more")
		read(t, far, "more")
	}
	select {
	case <-ended:
		t.Fatal("the connection ended before the network was mended")
	default:
	}
	n.changeCuts(mended)
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the connection does not end after the network was mended")
	}
	write(t, far, "passes again")
	read(t, near, "passes again")
}

// The end of one node's process ends the connection for the other.
func TestALinkPassesTheEnd(t *testing.T) {
	t.Parallel()
	near, far, _, _ := join(t)
	write(t, far, "last")
	far.Close()
	read(t, near, "last")
	readEnd(t, near)
}

// Closing a link does not wait for a cut to be mended.
func TestALinkIsClosedWhileItIsCut(t *testing.T) {
	t.Parallel()
	near, _, n, l := join(t)
	n.changeCuts(cutOneWay)
	write(t, near, "held")
	open(t, l)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		n.closeNetwork()
		l.closeLink()
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Fatal("it is not closed")
	}
}
