package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"
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
