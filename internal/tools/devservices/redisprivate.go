package devservices

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

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
	password := rand.Text() // or any local user could log in
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
	// Redis changes its command line to its name and where it listens.
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

// redisConfig writes the configuration, which only the server's account may
// read: there is a password in it.
func redisConfig(dir string, port int, password string, as *account) (string, error) {
	path := filepath.Join(dir, "redis.conf")
	config := fmt.Sprintf("bind 127.0.0.1\nport %d\nrequirepass %s\ndir %s\nsave \"\"\nappendonly yes\nmaxmemory-policy noeviction\ndaemonize no\n",
		port, password, strconv.Quote(dir))
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return "", err
	}
	return path, as.ownFile(path)
}
