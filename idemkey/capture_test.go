package idemkey_test

import (
	"bytes"
	"log/slog"
	"sync"
)

// A capture keeps what is logged, at every level.
type capture struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func newCapture() *capture { return &capture{} }

func (c *capture) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(c, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.Write(p)
}

func (c *capture) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.String()
}
