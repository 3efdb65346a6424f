package idemredis

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/rediskey"
)

// The defaults of [Options].
const (
	DefaultPrefix      = "idemkey:"
	DefaultCallTimeout = 500 * time.Millisecond
	DefaultKeepExpired = 24 * time.Hour
)

const (
	// maxClaims bounds the race between claims of a record that may be taken over.
	maxClaims = 3

	// saves is how often a response is offered to a Redis that does not take it, savePause apart.
	saves     = 3
	savePause = 100 * time.Millisecond
)

// Options configure a [Store]. The zero value works.
type Options struct {
	Prefix      string        // prefix of every key in Redis: visible ASCII characters, no braces; default: idemkey:
	CallTimeout time.Duration // longest time for one call of Redis, including its repetitions; default: 500 ms

	// With the option RejectExpired of the middleware, KeepExpired is how long an expired key is refused; Redis keeps the
	// record for this time. Default: 24 h.
	KeepExpired time.Duration

	// If Redis is configured to evict records, [Store.Check] returns [ErrEviction]; with AllowEviction, Check only logs a
	// warning. Default: false.
	AllowEviction bool

	Logger *slog.Logger // Logger gets the warnings of [Store.Check]; default: slog.Default()
}

func (o *Options) setDefaults() {
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
	o.CallTimeout = cmp.Or(o.CallTimeout, DefaultCallTimeout)
	o.KeepExpired = cmp.Or(o.KeepExpired, DefaultKeepExpired)
	o.Logger = guard.Logger(cmp.Or(o.Logger, slog.Default()))
}

// checkOptions returns an error that names the field.
func (o *Options) checkOptions() error {
	if err := rediskey.CheckPrefix(o.Prefix); err != nil {
		return fmt.Errorf("idemredis: Options.Prefix: %w", err)
	}
	if o.CallTimeout < time.Millisecond {
		return errors.New("idemredis: Options.CallTimeout must be at least a millisecond")
	}
	if o.KeepExpired < time.Millisecond {
		return errors.New("idemredis: Options.KeepExpired must be at least a millisecond")
	}
	return nil
}
