package idemkey_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/idemkey"
)

// Each covered request is one event and one log line, which does not tell the key.
func TestObserve(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := serve(t, newMemory(t, nil), created, func(o *idemkey.Options) { o.Logger = slog.New(slog.NewJSONHandler(&log, nil)) })
	s.post(t, "x", "Idempotency-Key", "secret-key")
	s.post(t, "x", "Idempotency-Key", "secret-key")
	s.post(t, "y", "Idempotency-Key", "secret-key")
	s.post(t, "y")
	s.Close() // the events come after the responses
	var got []string
	for _, e := range s.events {
		got = append(got, string(e.Result)+" "+string(e.Outcome)+" "+e.Code)
	}
	want := "first kept |replay  |mismatch  key-reused|missing  key-missing"
	if strings.Join(got, "|") != want {
		t.Errorf("events = %q, want %q", strings.Join(got, "|"), want)
	}
	if e := s.events[0]; e.Status != 201 || e.Attempt != 1 || e.Stored != len("created x\n") || e.Err != nil {
		t.Errorf("first event = %+v", e)
	}
	if lines := strings.Count(log.String(), "\n"); lines != 4 || strings.Contains(log.String(), "secret") || strings.Contains(log.String(), "tenant-") {
		t.Errorf("%d log lines, want 4 without key and scope:\n%s", lines, &log)
	}
}

// A deaf store does not hear that a key is released.
type deaf struct{ stub }

func (d *deaf) Begin(context.Context, idemkey.Claim) (idemkey.Decision, error) {
	return idemkey.Decision{Kind: idemkey.KindProceed, Attempt: 1, Exec: d}, nil
}

func (*deaf) Release(context.Context, idemkey.ReleaseMode, int) error { return errDeaf }
func (*deaf) Traits() idemkey.Traits                                  { return idemkey.Traits{Transactional: true} }

var errDeaf = errors.New("not heard")

// An error that is noted later leaves those before it in the event.
func TestErrorsAddUp(t *testing.T) {
	t.Parallel()
	seen := &observer{}
	m := newMiddleware(t, &deaf{}, idemkey.Options{Observer: seen, Response: idemkey.ResponseOptions{Sealer: lockedSealer{}}})
	send(t, m, created, "k", "x").expect(t, 500, "internal")
	if err := seen.last.Err; !errors.Is(err, errDeaf) || !errors.Is(err, errLocked) {
		t.Errorf("event has error %v, want those of the Sealer and of the release", err)
	}
}
