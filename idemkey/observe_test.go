package idemkey_test

import (
	"bytes"
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
