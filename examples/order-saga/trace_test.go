package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/devservices"
)

// A lines is a writer that tests wait for.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

// spans returns what was written.
func (l *lines) spans(t *testing.T) (all []spanLine) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.all.Bytes()) {
		var s spanLine
		if err := json.Unmarshal(line, &s); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, s)
	}
	return all
}

// path returns the names of the spans from the root of s down to s.
func path(all []spanLine, s spanLine) string {
	for _, parent := range all {
		if parent.Span == s.Parent {
			return path(all, parent) + " > " + s.Service + ":" + s.Name
		}
	}
	return s.Service + ":" + s.Name
}

// An order that cannot be shipped is one trace, from the request over the three
// services and the calls of the gateway to the record of the refund.
func TestAnOrderIsOneTrace(t *testing.T) {
	t.Parallel()
	written := &lines{}
	traces := &tracing{to: written}
	s := newTracedSite(t, devservices.InProcess, traces)
	id := s.place("acme", "k", `{"item":"unshippable","quantity":1,"amount":4200,"currency":"EUR","card":"tok_ok"}`)
	if got := s.end("acme", id); got.Status != "cancelled" {
		t.Fatalf("order %+v, want it cancelled", got)
	}
	const placed, charged = "order-saga:POST /orders", " > payment:process process-payment"
	want := []string{
		placed,
		placed + " > order:publish order.created",
		placed + charged,
		placed + charged + " > payment:POST /charges",
		placed + charged + " > payment:POST /charges > order-saga:POST /charges",
		placed + charged + " > payment:publish payment.processed",
		placed + charged + " > shipping:process arrange-shipping",
		placed + charged + " > shipping:process arrange-shipping > shipping:publish shipment.rejected",
		placed + charged + " > shipping:process arrange-shipping > payment:compensate process-payment",
		placed + charged + " > shipping:process arrange-shipping > payment:compensate process-payment > payment:POST /refunds",
		placed + charged + " > shipping:process arrange-shipping > payment:compensate process-payment > payment:POST /refunds > order-saga:POST /refunds",
		placed + charged + " > shipping:process arrange-shipping > payment:compensate process-payment > payment:publish payment.refunded",
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		for _, p := range traces.providers {
			_ = p.ForceFlush(ctx)
		}
		all := written.spans(t)
		var got []string
		for _, span := range all {
			got = append(got, path(all, span))
		}
		missing := slices.DeleteFunc(slices.Clone(want), func(p string) bool { return slices.Contains(got, p) })
		if len(missing) == 0 {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("no\n%s\nin\n%s", strings.Join(missing, "\n"), strings.Join(got, "\n"))
		}
		_ = backoff.Sleep(ctx, 20*time.Millisecond)
	}
}

func TestWhereTracesGo(t *testing.T) {
	t.Parallel()
	if none, err := openTracing("", io.Discard); none != nil || err != nil {
		t.Errorf("without a file: %v, %v", none, err)
	}
	if _, err := openTracing(t.TempDir(), io.Discard); err == nil {
		t.Error("opened a folder")
	}
	name := filepath.Join(t.TempDir(), "spans")
	for range 2 { // one after the other appends
		traces, err := openTracing(name, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		_, span := traces.newProvider("order").Tracer("t").Start(t.Context(), "once")
		span.End()
		if err := traces.closeProviders(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(name); err != nil || bytes.Count(text, []byte(`"name":"once"`)) != 2 {
		t.Errorf("the file has %s, %v; want two spans", text, err)
	}
}
