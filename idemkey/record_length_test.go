package idemkey_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/idemkey"
)

// exchange sends a request under the key k to handler, with headers that outer middleware sets, and returns the answer.
func exchange(t *testing.T, m *idemkey.Middleware, method string, outer http.Header, handler http.HandlerFunc) (*http.Response, string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, values := range outer {
			w.Header()[name] = slices.Clone(values)
		}
		m.Handler(handler).ServeHTTP(w, r)
	}))
	defer s.Close()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k")
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read body: %v", err)
	}
	return resp, string(body)
}

// Frameworks write an empty body after a status that has none: echo's c.String(204, "") does.
func TestEmptyWriteWithoutABody(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNoContent, http.StatusNotModified} {
		m := newMiddleware(t, newMemory(t, nil), idemkey.Options{})
		for range 2 {
			resp, _ := exchange(t, m, "POST", nil, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				if n, err := w.Write(nil); n != 0 || err != nil {
					t.Errorf("%d: an empty Write = %d, %v", status, n, err)
				}
				if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
					t.Errorf("%d: a Write = %v", status, err)
				}
			})
			if resp.StatusCode != status {
				t.Errorf("got %d, want %d", resp.StatusCode, status)
			}
		}
	}
}

// A response that breaks off is no success: it is neither sent nor stored.
func TestShortResponse(t *testing.T) {
	t.Parallel()
	var mapped error
	m := newMiddleware(t, newMemory(t, nil), idemkey.Options{Problems: idemkey.ProblemOptions{MapError: func(err error) *idemkey.Problem {
		mapped = err
		return nil
	}}})
	runs := 0
	handler := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		n := 4 + min(runs, 1)
		runs++
		_, _ = io.WriteString(w, "12345"[:n])
	}
	if resp, body := exchange(t, m, "POST", nil, handler); resp.StatusCode != 500 || !strings.Contains(body, `"code":"internal"`) || !errors.Is(mapped, idemkey.ErrShortResponse) {
		t.Errorf("four of five bytes: %d %s, %v", resp.StatusCode, body, mapped)
	}
	for range 2 {
		if resp, body := exchange(t, m, "POST", nil, handler); resp.StatusCode != 200 || body != "12345" {
			t.Errorf("then %d %q", resp.StatusCode, body)
		}
	}
	if runs != 2 {
		t.Errorf("the handler has run %d times, want 2", runs)
	}
}

// What a status says by a header, a replay says, too. Names in Vary of middleware around it stay.
func TestHeadersOfReplays(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, newMemory(t, nil), idemkey.Options{Policy: idemkey.KeepAll})
	handler := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", "GET, HEAD")
		w.Header().Set("Retry-After", "7")
		w.Header().Add("Vary", "Accept, origin")
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
	for i, outer := range []http.Header{{"Vary": {"Origin"}}, {"Vary": {"Origin, Accept-Encoding"}}, {}} {
		resp, _ := exchange(t, m, "POST", outer, handler)
		if resp.StatusCode != 405 || resp.Header.Get("Allow") != "GET, HEAD" || resp.Header.Get("Retry-After") != "7" {
			t.Errorf("answer %d: %d %v", i, resp.StatusCode, resp.Header)
		}
		want := [][]string{{"Origin", "Accept, origin"}, {"Origin, Accept-Encoding", "Accept"}, {"Origin", "Accept, origin"}}[i]
		if got := resp.Header["Vary"]; !slices.Equal(got, want) {
			t.Errorf("answer %d: Vary = %q, want %q", i, got, want)
		}
	}
	if idemkey.DefaultPolicy(http.StatusUpgradeRequired) != idemkey.Retryable {
		t.Error("a 426 is kept, whose header Upgrade never is")
	}
}

// HEAD has the length of a body that is not sent.
func TestHeadIsReplayedWithItsLength(t *testing.T) {
	t.Parallel()
	for _, redact := range []func(*http.Request, *idemkey.Response){nil, func(*http.Request, *idemkey.Response) {}} {
		m := newMiddleware(t, newMemory(t, nil), idemkey.Options{Methods: []string{"HEAD"}, Response: idemkey.ResponseOptions{Redact: redact}})
		for range 2 {
			resp, _ := exchange(t, m, "HEAD", nil, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "99") })
			if resp.StatusCode != 200 || resp.ContentLength != 99 {
				t.Errorf("got %d with length %d, want 99", resp.StatusCode, resp.ContentLength)
			}
		}
	}
}
