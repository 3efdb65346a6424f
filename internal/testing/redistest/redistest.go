// Package redistest gives tests three kinds of Redis. REDIS_URL names the shared server, on which each test
// uses a unique key prefix. A proxy in front of it loses replies. A test may change the settings of private
// servers.
package redistest

import (
	"cmp"
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/testing/needtest"
)

const (
	cleanupTimeout = 30 * time.Second
	scanCount      = 1000
)

// URL returns REDIS_URL, or the usual address of Redis on a developer's machine. The server is shared: never
// flush it, change its settings or list its keys. Without a server the test is skipped.
func URL(t testing.TB) string {
	t.Helper()
	url := cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379/0")
	if url == devservices.NoRedis {
		needtest.Missing(t, "redis", "no Redis on this machine")
	}
	return url
}

// Client returns a client of the shared server, closed when the test ends.
func Client(t testing.TB) *redis.Client {
	t.Helper()
	client := newClient(t, Options(t))
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatalf("no test Redis (run `make test`, or set REDIS_URL): %v", err)
	}
	return client
}

// Options returns the options of a client of the shared server.
func Options(t testing.TB) *redis.Options {
	t.Helper()
	opts, err := redis.ParseURL(URL(t))
	if err != nil {
		t.Fatal("REDIS_URL is not a Redis URL") // the library's error may quote it
	}
	opts.ContextTimeoutEnabled = true
	return opts
}

func newClient(t testing.TB, opts *redis.Options) *redis.Client {
	client := redis.NewClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Prefix returns a unique prefix of keys. The keys with it are deleted when the test ends.
func Prefix(t testing.TB) string {
	t.Helper()
	opts := Options(t)
	prefix := "t-" + strings.ToLower(rand.Text()[:14]) + ":"
	t.Cleanup(func() {
		client := redis.NewClient(opts) // the test's client may be closed or broken by then
		defer client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		keys := client.Scan(ctx, 0, prefix+"*", scanCount).Iterator()
		for keys.Next(ctx) {
			if err := client.Unlink(ctx, keys.Val()).Err(); err != nil {
				t.Errorf("clean up: %v", err)
			}
		}
		if err := keys.Err(); err != nil {
			t.Errorf("clean up %s: %v", prefix, err)
		}
	})
	return prefix
}
