package console

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// A request does not wait for the read of another one after its own end, and entries that are there do not push out
// others.
func TestAReadOfOthersIsNotWaitedForTooLong(t *testing.T) {
	t.Parallel()
	var m memo[int]
	reading, release, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		_, err := m.get(t.Context(), "k", time.Hour, func(context.Context) (int, error) {
			close(reading)
			<-release
			return 1, nil
		})
		done <- err
	}()
	<-reading
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := m.get(gone, "k", time.Hour, func(context.Context) (int, error) { return 2, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that has ended gets %v", err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got, err := m.get(t.Context(), "k", time.Hour, func(context.Context) (int, error) { return 2, nil }); got != 1 || err != nil {
		t.Errorf("get = %d, %v; want the value of the first read", got, err)
	}

	few, reads := memo[int]{limit: 2}, 0
	for i := range 6 {
		_, _ = few.get(t.Context(), fmt.Sprint(i%2), time.Hour, func(context.Context) (int, error) {
			reads++
			return 0, nil
		})
	}
	if reads != 2 {
		t.Errorf("two keys with room for two were read %d times", reads)
	}
}

// A browser that has gone is no error of the console.
func TestABrowserThatHasGoneIsNoError(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	c := &Console{opts: Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	if e := c.explainError(t.Context(), fmt.Errorf("read: %w", context.Canceled)); e.Status != 503 || log.Len() > 0 {
		t.Errorf("status %d, logged %q", e.Status, &log)
	}
	if c.explainError(t.Context(), errors.New("odd")); log.Len() == 0 {
		t.Error("another error is not logged")
	}
}

// What took long to read is kept for longer, but not for ever: open pages are a small part of the work of a database.
func TestAnExpensiveValueIsKeptForLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m memo[int]
		reads, took := 0, 100*time.Millisecond
		get := func() {
			_, _ = m.getShared(t.Context(), "k", time.Second, func(context.Context) (int, error) {
				time.Sleep(took)
				reads++
				return reads, nil
			})
		}
		get()
		time.Sleep(readShare*took - time.Millisecond)
		if get(); reads != 1 {
			t.Errorf("within %d times what the read took there were %d reads", readShare, reads)
		}
		if value, known := m.peek("k"); value != 1 || !known {
			t.Errorf("peek = %d, %t", value, known)
		}
		time.Sleep(2 * time.Millisecond)
		if _, known := m.peek("k"); known {
			t.Error("peek returns an old value")
		}
		took = time.Hour
		if get(); reads != 2 {
			t.Errorf("there were %d reads, want 2", reads)
		}
		time.Sleep(maxMemoAge)
		if get(); reads != 3 {
			t.Errorf("after %s there were %d reads, want 3", maxMemoAge, reads)
		}
	})
}

// Nothing of the console runs once the browsers have gone: so it reads nothing.
func TestNothingIsReadWhileNobodyLooks(t *testing.T) {
	f := newFixture(t, RoleViewer, nil) // not parallel: goleak looks at the whole process
	f.putStuck(t, "k", 2)
	f.get(t, "/")
	f.browser.CloseIdleConnections()
	before := goleak.IgnoreCurrent()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for _, path := range []string{"/live/", "/live/sagas", "/live/dead", "/live/outbox", "/live/saga?key=k0001"} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := f.browser.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if _, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s = %d, %v", path, response.StatusCode, err)
		}
	}
	leave()
	f.browser.CloseIdleConnections()
	goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"))
}
