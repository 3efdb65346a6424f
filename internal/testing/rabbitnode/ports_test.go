package rabbitnode

import (
	"net"
	"strconv"
	"testing"
)

// A port belongs to one node until that is closed, whether it listens or not, and what
// others listen on is not taken.
func TestAPortIsReservedForOneNode(t *testing.T) {
	t.Parallel()
	var first, second int
	holds, err := reservePorts(&first, &second)
	if err != nil || first == second {
		t.Fatalf("ports %d and %d, %v", first, second, err)
	}
	if hold, err := reservePort(first); err == nil {
		t.Errorf("port %d is reserved twice", first)
		_ = hold.Close()
	}
	for _, hold := range holds {
		if err := hold.Close(); err != nil {
			t.Error(err)
		}
	}
	other, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(second)))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if hold, err := reservePort(second); err == nil {
		t.Errorf("port %d is reserved, and somebody listens on it", second)
		_ = hold.Close()
	}
}
