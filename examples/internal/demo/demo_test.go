package demo

import (
	"log/slog"
	"testing"
)

// A client that sends slowly, or a header without end, does not keep a connection.
func TestTheServerHasLimits(t *testing.T) {
	t.Parallel()
	server, _ := (&App{}).newServer()
	if server.ReadHeaderTimeout <= 0 || server.ReadTimeout <= 0 || server.WriteTimeout <= 0 || server.IdleTimeout <= 0 || server.MaxHeaderBytes <= 0 {
		t.Errorf("%+v has no limit for something", server)
	}
}

// Several addresses of a broker have one user. None of them is dialled.
func TestABrokerOfSeveralAddresses(t *testing.T) {
	t.Parallel()
	const list = "amqp://u:p@127.0.0.1:1, amqp://u:p@127.0.0.1:2"
	p := &Program{Name: "example", Services: []string{"one"}}
	if err := (&Settings{Program: p, AMQPURL: list, Services: p.Services}).CheckURLs(); err != nil {
		t.Errorf("CheckURLs of %s: %v", list, err)
	}
	b, err := OpenBroker(list, p.Name, true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("OpenBroker of %s: %v", list, err)
	}
	_ = b.Close()
}

func TestLastLines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text  string
		limit int
		want  string
	}{
		{"one\ntwo\n", 8, "one\ntwo\n"},
		{"one\ntwo\n", 4, "two\n"},
		{"one\ntwo\n", 7, "two\n"},
		{"one\ntwo", 5, "two"},
		{"one long line", 4, "line"},
		{"a long line\n", 5, "line\n"},
		{"", 4, ""},
	} {
		if got := string(lastLines([]byte(tt.text), tt.limit)); got != tt.want {
			t.Errorf("lastLines(%q, %d) = %q, want %q", tt.text, tt.limit, got, tt.want)
		}
	}
}
