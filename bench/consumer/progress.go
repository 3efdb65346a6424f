package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// A progress counts the entries of handlers. The first entry begins a slice; the database shows when it ends.
type progress struct {
	want  int64
	count atomic.Int64
	begun time.Time     // of the first; read it after all is closed
	all   chan struct{} // closed after as many entries as wanted
}

func newProgress(want int) *progress {
	return &progress{want: int64(want), all: make(chan struct{})}
}

func (p *progress) enterHandler() {
	now := p.count.Add(1)
	if now == 1 {
		p.begun = time.Now()
	}
	if now == p.want {
		close(p.all)
	}
}

// waitUntilDone waits for as many entries as wanted. An end of the consumer, which failed reports, comes too
// early here and is an error.
func (p *progress) waitUntilDone(ctx context.Context, failed <-chan error) error {
	select {
	case <-p.all:
		return nil
	case err := <-failed:
		return fmt.Errorf("the consumer has ended after %d of %d messages: %w", p.count.Load(), p.want, err)
	case <-ctx.Done():
		return fmt.Errorf("%d of %d messages have reached their handler: %w", p.count.Load(), p.want, ctx.Err())
	}
}
