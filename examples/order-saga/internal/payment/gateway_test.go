package payment

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/sagamill/sagamill/consumer"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status int
		body   string
		want   string
	}{
		{201, `{}`, "done"},
		{200, `<html>`, "done"},
		{402, `{"code":"card-declined","detail":"why"}`, "declined"},
		{400, `{"code":"movement-invalid"}`, "terminal"}, // and not done
		{422, `{"code":"key-reused"}`, "terminal"},
		{404, `{"code":"charge-unknown"}`, "terminal"},
		{409, `{"code":"in-progress"}`, "again"},
		{503, `{"code":"try-again"}`, "again, not done"},
		{503, `{"code":"starting"}`, "again, not done"},
		{503, `{"code":"store-unavailable"}`, "again"},
		{504, `<html>gateway timeout</html>`, "again"},
		{404, `<html>no route: a deploy is under way</html>`, "again"},
		{401, ``, "again"},
		{429, ``, "again"},
	} {
		err := judgeAnswer(tt.status, []byte(tt.body))
		var declined *DeclinedError
		got := "again"
		switch {
		case err == nil:
			got = "done"
		case errors.As(err, &declined):
			got = "declined"
		case errors.Is(err, consumer.ErrTerminal):
			got = "terminal"
		case errors.Is(err, consumer.ErrNotDone):
			got = "again, not done"
		}
		if got == "terminal" && !errors.Is(err, consumer.ErrNotDone) {
			t.Errorf("%d %s: in doubt", tt.status, tt.body)
		}
		if got != tt.want {
			t.Errorf("%d %s: %s (%v), want %s", tt.status, tt.body, got, err, tt.want)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status int
		body   string
		want   string
	}{
		{200, `{"kind":"charge","amount":5}`, "found"},
		{404, `{"code":"movement-unknown"}`, "not found"},
		{404, `<html>no route: a deploy is under way</html>`, "unknown"},
		{404, `{"code":"path-unknown"}`, "unknown"},
		{200, `<html>a login page</html>`, "unknown"},
		{200, `{}`, "unknown"},
		{503, `{"code":"store-unavailable"}`, "unknown"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(tt.status)
			_, _ = w.Write([]byte(tt.body))
		}))
		_, found, err := Gateway{URL: server.URL, Client: server.Client()}.FindCharge(t.Context(), "k")
		server.Close()
		got := map[bool]string{true: "found", false: "not found"}[found]
		if err != nil {
			got = "unknown"
		}
		if got != tt.want {
			t.Errorf("%d %s: %s (%v), want %s", tt.status, tt.body, got, err, tt.want)
		}
	}
}

// A gateway that was not reached has done nothing. One that takes a request and
// closes the connection may have, and does not get the request again unasked.
func TestWhatALostConnectionSays(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) > 1 { // not on the first, which has a new connection
			panic(http.ErrAbortHandler)
		}
	}))
	g := Gateway{URL: server.URL, Client: server.Client()}
	if err := g.Charge(t.Context(), "k", Charge{}); err != nil {
		t.Fatal(err)
	}
	if err := g.Charge(t.Context(), "k", Charge{}); err == nil || errors.Is(err, consumer.ErrNotDone) || requests.Load() != 2 {
		t.Errorf("a closed connection after %d requests: %v", requests.Load(), err)
	}
	server.Close()
	if err := g.Charge(t.Context(), "k", Charge{}); !errors.Is(err, consumer.ErrNotDone) {
		t.Errorf("a refused connection: %v", err)
	}
}
