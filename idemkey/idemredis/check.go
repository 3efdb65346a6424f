package idemredis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ErrEviction reports a Redis that removes records when its memory is full. Every
// record expires, so only the policy noeviction keeps them.
var ErrEviction = errors.New("idemredis: Redis may evict records: maxmemory-policy is not noeviction")

// Check asks Redis, on a cluster each master, for the settings that a Store
// relies on; call it once at start-up.
//
// After nil Redis evicts nothing, or Options.AllowEviction is set and the log
// says that it does. After [ErrEviction] it may remove a record, and a request
// would run again. Any other error is that of a Redis that cannot be asked. An
// append-only file that is off is logged only: a restart then forgets records.
func (s *Store) Check(ctx context.Context) error {
	each := func(ctx context.Context, node *redis.Client) error { return s.checkNode(ctx, node) }
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, each)
	}
	return s.checkNode(ctx, s.client)
}

// checkNode uses INFO: hosted servers often forbid CONFIG.
func (s *Store) checkNode(ctx context.Context, node redis.Cmdable) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.CallTimeout)
	defer cancel()
	info, err := node.Info(ctx).Result()
	if err != nil {
		return fmt.Errorf("idemredis: check: %w", err)
	}
	policy, aof := infoField(info, "maxmemory_policy"), infoField(info, "aof_enabled")
	switch {
	case policy == "":
		return errors.New("idemredis: check: Redis does not tell its maxmemory_policy")
	case policy != "noeviction" && !s.opts.AllowEviction:
		return fmt.Errorf("%w but %s", ErrEviction, policy)
	case policy != "noeviction":
		s.opts.Logger.WarnContext(ctx, "idemredis: Redis may evict records, and a request then runs again", "maxmemory_policy", policy)
	}
	if aof != "1" {
		s.opts.Logger.WarnContext(ctx, "idemredis: Redis has no append-only file: a restart forgets records", "aof_enabled", aof)
	}
	return nil
}

// infoField returns the value of a line name:value.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
