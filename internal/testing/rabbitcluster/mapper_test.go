package rabbitcluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
	"testing"
	"time"
)

// startMapper starts a mapper that knows one peer.
func startMapper(t *testing.T) *mapper {
	t.Helper()
	peer := &registration{name: "peer", port: 4711, kind: normalNode, highest: 6, last: 5, extra: []byte("x")}
	m, err := newMapper(func(name string) *registration {
		if name == peer.name {
			return peer
		}
		return nil
	}, func() []*registration { return []*registration{peer} })
	if err != nil {
		t.Fatal(err)
	}
	m.startMapper()
	t.Cleanup(m.closeMapper)
	return m
}

// request sends a request to m and returns the connection.
func request(t *testing.T, m *mapper, body []byte) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(m.listenPort())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(body))), body...)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// ask sends a request to m and returns all of the answer.
func ask(t *testing.T, m *mapper, body []byte) []byte {
	t.Helper()
	answer, err := io.ReadAll(request(t, m, body))
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// alive is the request of a node, which knows the protocol up to a version.
func alive(name string, port, highest uint16) []byte {
	body := binary.BigEndian.AppendUint16([]byte{aliveRequest}, port)
	body = append(body, normalNode, 0)
	body = binary.BigEndian.AppendUint16(body, highest)
	body = binary.BigEndian.AppendUint16(body, 5)
	body = append(binary.BigEndian.AppendUint16(body, uint16(len(name))), name...)
	return append(body, 0, 1, 'e')
}

// register registers a node and returns its connection and the creation it got.
func register(t *testing.T, m *mapper, name string, port uint16) (net.Conn, uint32) {
	t.Helper()
	conn := request(t, m, alive(name, port, 6))
	answer := make([]byte, 6)
	if _, err := io.ReadFull(conn, answer); err != nil || answer[0] != aliveResponse || answer[1] != 0 {
		t.Fatalf("answer to a registration: %v, %v", answer, err)
	}
	return conn, binary.BigEndian.Uint32(answer[2:])
}

func TestAMapperTellsThePortOfWhatIsRegistered(t *testing.T) {
	t.Parallel()
	m := startMapper(t)
	conn, creation := register(t, m, "own", 1234)
	if creation < firstCreation {
		t.Errorf("creation = %d, want at least %d: smaller ones are reserved", creation, firstCreation)
	}
	want := []byte{portResponse, 0, 1234 >> 8, 1234 & 255, normalNode, 0, 0, 6, 0, 5, 0, 3, 'o', 'w', 'n', 0, 1, 'e'}
	if got := ask(t, m, []byte("zown")); !bytes.Equal(got, want) {
		t.Errorf("port of own = %v, want %v", got, want)
	}
	want = []byte{portResponse, 0, 4711 >> 8, 4711 & 255, normalNode, 0, 0, 6, 0, 5, 0, 4, 'p', 'e', 'e', 'r', 0, 1, 'x'}
	if got := ask(t, m, []byte("zpeer")); !bytes.Equal(got, want) {
		t.Errorf("port of peer = %v, want %v", got, want)
	}
	if got := ask(t, m, []byte("zother")); len(got) != 2 || got[0] != portResponse || got[1] == 0 {
		t.Errorf("port of what is not registered = %v, want a refusal", got)
	}
	names := "name own at port 1234\nname peer at port 4711\n"
	if got := ask(t, m, []byte{namesRequest}); len(got) < 4 || binary.BigEndian.Uint32(got) != uint32(m.listenPort()) || string(got[4:]) != names {
		t.Errorf("names = %q, want the mapper's port and %q", got, names)
	}
	conn.Close()
	if err := awaitCondition("the name is free", func() error {
		if m.registered("own") != nil {
			return errors.New("it is registered")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, again := register(t, m, "own", 1235); again == creation {
		t.Errorf("creation = %d twice: the processes of both nodes would have the same names", again)
	}
}

func TestAMapperRefusesANameThatIsTaken(t *testing.T) {
	t.Parallel()
	m := startMapper(t)
	register(t, m, "own", 1234)
	if answer := ask(t, m, alive("own", 99, 6)); len(answer) != 6 || answer[0] != aliveResponse || answer[1] == 0 {
		t.Errorf("answer = %v, want a refusal", answer)
	}
	if r := m.registered("own"); r == nil || r.port != 1234 {
		t.Errorf("registered = %+v, want the first, with port 1234", r)
	}
}

// Nodes of Erlang 22 and before read a creation of two bytes.
func TestAMapperAnswersAnOldNode(t *testing.T) {
	t.Parallel()
	m := startMapper(t)
	conn, answer := request(t, m, alive("old", 1, 5)), make([]byte, 4)
	if _, err := io.ReadFull(conn, answer); err != nil || answer[0] != oldAliveReply || answer[1] != 0 || answer[3] < 1 || answer[3] > 3 {
		t.Errorf("answer = %v, %v; want a creation from 1 to 3", answer, err)
	}
}

func TestAMapperEndsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	m := startMapper(t)
	whole := alive("own", 1234, 6)
	for length := range whole {
		if got := ask(t, m, whole[:length]); len(got) > 0 {
			t.Errorf("answer to %d bytes of a registration = %v, want none", length, got)
		}
	}
	if got := ask(t, m, []byte{1}); len(got) > 0 {
		t.Errorf("answer to a request that is not known = %v, want none", got)
	}
}
