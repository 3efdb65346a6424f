package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey/idemhybrid"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/idemkey/idemredis"
)

// redisPatience is longer than the default: the benchmark measures a Redis that waits for the disk, and must
// not give it up.
const redisPatience = 5 * time.Second

// A cache is the connection to Redis, counted like the one to PostgreSQL: a command is a statement.
type cache struct {
	client *redis.Client
	wire   wire
}

func connectCache(url string) (*cache, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	c := &cache{}
	opts.ContextTimeoutEnabled, opts.Dialer = true, c.wire.dialCounted
	opts.PoolSize, opts.MinIdleConns = poolSize, poolSize
	c.client = redis.NewClient(opts)
	c.client.AddHook(c)
	return c, nil
}

// DialHook does nothing.
func (c *cache) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return next(ctx, network, address)
	}
}

// ProcessHook counts a command.
func (c *cache) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.wire.statements.Add(1)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook counts the commands of a pipeline.
func (c *cache) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.wire.statements.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// A count is the traffic to Redis so far.
type count struct{ commands, trips int64 }

// currentCount returns the counts so far; without a cache they are zero.
func (c *cache) currentCount() count {
	if c == nil {
		return count{}
	}
	return count{c.wire.statements.Load(), c.wire.trips.Load()}
}

// formatCost returns the cost of each of costRequests on Redis since then.
func (c *cache) formatCost(since count) string {
	if c == nil {
		return ""
	}
	now := c.currentCount()
	return fmt.Sprintf("  Redis commands %.2f  round trips %.2f",
		float64(now.commands-since.commands)/costRequests, float64(now.trips-since.trips)/costRequests)
}

// durability describes how durable a reply of Redis is. With appendfsync everysec no request waits for an
// fsync, and a crash may lose the last second's replies.
func (c *cache) durability(ctx context.Context) (string, error) {
	text := "Redis"
	for _, name := range []string{"appendonly", "appendfsync", "maxmemory-policy"} {
		values, err := c.client.ConfigGet(ctx, name).Result()
		if err != nil {
			return "", fmt.Errorf("CONFIG GET %s: %w", name, err)
		}
		text += fmt.Sprintf(" %s %s", name, values[name])
	}
	return text, nil
}

// buildOnRedis keeps the record in Redis. The handler commits its own transaction before that, which Redis
// cannot roll back.
func buildOnRedis(s *subject) (http.Handler, error) {
	store, err := idemredis.New(s.redis.client, &idemredis.Options{Prefix: s.schema + ":", CallTimeout: redisPatience})
	if err != nil {
		return nil, err
	}
	return s.handlerBehind(store, s.bareHandler())
}

// buildHybrid uses leases in PostgreSQL behind locks in Redis.
func buildHybrid(s *subject) (http.Handler, error) {
	pg, err := idempg.New(s.pool, &idempg.Options{Schema: s.schema})
	if err != nil {
		return nil, err
	}
	store, err := idemhybrid.New(pg, s.redis.client, &idemhybrid.Options{Prefix: s.schema + ":", CallTimeout: redisPatience})
	if err != nil {
		return nil, err
	}
	return s.handlerBehind(store, idempg.HandleTx(s.insertOrder))
}
