package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// A progress counts how often handlers are entered. That is when a slice begins;
// when it ends the database says.
type progress struct {
	want  int64
	count atomic.Int64
	begun time.Time     // of the first; to be read once all is closed
	all   chan struct{} // closed when as many as wanted have been entered
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

// waitUntilDone waits for as many entries as wanted. failed gives the end of the consumer,
// which comes too early here.
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
