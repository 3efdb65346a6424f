package devservices

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	usualRedis = "redis://127.0.0.1:6379/0"

	// NoRedis is the RedisURL of a machine without Redis.
	NoRedis = "none:"

	// The oldest version whose scripts may write after they have read the time.
	minRedis = 6
)

func (r *run) redisWays() []way {
	return []way{
		{"env", optionalRedis.useVariable},
		{"found", optionalRedis.useFound},
		{"docker", r.dockerRedis},
		{"private", r.privateRedis},
		{"apt", r.aptRedis},
		{"none", optionalRedis.useNone},
	}
}

var optionalRedis = optionalServer{variable: "REDIS_URL", none: NoRedis, usual: usualRedis, probe: probeRedis}

// probeRedis logs in and returns the server's version and place. The result and the error do not hold the
// password.
func probeRedis(ctx context.Context, timeout time.Duration, server string) (string, error) {
	opts, err := redis.ParseURL(server)
	if err != nil {
		return "", errors.New("not a Redis URL") // the library's error may quote it
	}
	opts.ContextTimeoutEnabled, opts.MaxRetries, opts.DialerRetries = true, -1, 1 // the caller repeats the probe itself
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// Dial first: the library logs a failed dial, which is normal here.
	conn, err := (&net.Dialer{}).DialContext(ctx, opts.Network, opts.Addr)
	if err != nil {
		return "", err
	}
	_ = conn.Close()
	client := redis.NewClient(opts)
	defer client.Close()
	info, err := client.InfoMap(ctx, "server", "replication").Result()
	if err != nil {
		return "", err
	}
	version, major := info["Server"]["redis_version"], 0
	if _, err := fmt.Sscanf(version, "%d.", &major); err != nil || major < minRedis {
		return "", fmt.Errorf("it is version %q; needed is %d or later", version, minRedis)
	}
	if role := info["Replication"]["role"]; role != "master" {
		return "", fmt.Errorf("it is a %s: it takes no writes", role)
	}
	return fmt.Sprintf("version %s at %s, database %d", version, opts.Addr, opts.DB), nil
}

const (
	redisReadyTimeout = 30 * time.Second
	redisReadyPause   = 20 * time.Millisecond
)

// privateRedis starts Redis from an installed binary.
func (r *run) privateRedis(ctx context.Context) (instance, error) {
	server, err := exec.LookPath("redis-server")
	if err != nil {
		return instance{}, serviceAbsent("no redis-server on PATH")
	}
	as, err := unprivileged(ctx, "redis")
	if err != nil {
		return instance{}, err
	}
	if _, err := r.runDirectory(); err != nil {
		return instance{}, err
	}
	return attempts(func() (instance, error) { return r.tryRedis(ctx, server, as) })
}

// tryRedis starts the server once, on a port that is free now.
func (r *run) tryRedis(ctx context.Context, server string, as *account) (instance, error) {
	dir, err := r.dir.subdirectory("redis", as)
	if err != nil {
		return instance{}, err
	}
	port, err := freePort()
	if err != nil {
		return instance{}, err
	}
	password := rand.Text() // keeps other local users out
	config, err := redisConfig(dir, port, password, as)
	if err != nil {
		return instance{}, err
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LC_ALL=C"}
	p, err := program{path: server, args: []string{config}, env: env, dir: dir, as: as}.startProgram(filepath.Join(r.dir.path, "redis.log"), syscall.SIGKILL)
	if err != nil {
		return instance{}, err
	}
	stop := func() error { return p.stopProcess(syscall.SIGKILL) } // its data need not survive
	r.undoOnClose(stop)
	// Redis changes its command line to its name and its address.
	if err := r.dir.recordProcess(p, loopback(port)); err != nil {
		return instance{}, errors.Join(err, stop())
	}
	u := url.URL{Scheme: "redis", User: url.UserPassword("", password), Host: loopback(port), Path: "/0"}
	in := instance{url: u.String()}
	err = p.awaitReady(ctx, redisReadyTimeout, redisReadyPause, func(ctx context.Context) error {
		in.what, err = probeRedis(ctx, findTimeout, in.url)
		return err
	})
	if err != nil {
		return instance{}, errors.Join(fmt.Errorf("redis-server: %w", err), stop())
	}
	in.what = fmt.Sprintf("started %s from %s, pid %d", in.what, server, p.pid)
	return in, nil
}

// redisConfig writes the configuration. Only the server's account may read it, because it holds a password.
func redisConfig(dir string, port int, password string, as *account) (string, error) {
	path := filepath.Join(dir, "redis.conf")
	config := fmt.Sprintf("bind 127.0.0.1\nport %d\nrequirepass %s\ndir %s\nsave \"\"\nappendonly yes\nmaxmemory-policy noeviction\ndaemonize no\n",
		port, password, strconv.Quote(dir))
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return "", err
	}
	return path, as.ownFile(path)
}
