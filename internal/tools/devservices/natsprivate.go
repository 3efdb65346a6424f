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
	natsReadyTimeout = 30 * time.Second
	natsReadyPause   = 20 * time.Millisecond
	natsUser         = "sagamill"
)

// privateNATS starts NATS with JetStream from an installed binary.
func (r *run) privateNATS(ctx context.Context) (instance, error) {
	server, err := exec.LookPath("nats-server")
	if err != nil {
		return instance{}, serviceAbsent("no nats-server on PATH")
	}
	as, err := unprivileged(ctx, "nats")
	if err != nil {
		return instance{}, err
	}
	if _, err := r.runDirectory(); err != nil {
		return instance{}, err
	}
	return attempts(func() (instance, error) { return r.tryNATSServer(ctx, server, as) })
}

// tryNATSServer starts the server once, on a port that is free now.
func (r *run) tryNATSServer(ctx context.Context, server string, as *account) (instance, error) {
	dir, err := r.dir.subdirectory("nats", as)
	if err != nil {
		return instance{}, err
	}
	port, err := freePort()
	if err != nil {
		return instance{}, err
	}
	password := rand.Text() // or any local user could log in
	config, err := natsConfig(dir, port, password, as)
	if err != nil {
		return instance{}, err
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LC_ALL=C"}
	p, err := program{path: server, args: []string{"-c", config}, env: env, dir: dir, as: as}.startProgram(filepath.Join(r.dir.path, "nats.log"), syscall.SIGKILL)
	if err != nil {
		return instance{}, err
	}
	stop := func() error { return p.stopProcess(syscall.SIGKILL) } // its data need not survive
	r.undoOnClose(stop)
	if err := r.dir.recordProcess(p, config); err != nil {
		return instance{}, errors.Join(err, stop())
	}
	u := url.URL{Scheme: "nats", User: url.UserPassword(natsUser, password), Host: loopback(port)}
	in := instance{url: u.String()}
	err = p.awaitReady(ctx, natsReadyTimeout, natsReadyPause, func(ctx context.Context) error {
		in.what, err = probeNATS(ctx, findTimeout, in.url)
		return err
	})
	if err != nil {
		return instance{}, errors.Join(fmt.Errorf("nats-server: %w", err), stop())
	}
	in.what = fmt.Sprintf("started %s from %s, pid %d", in.what, server, p.pid)
	return in, nil
}

// natsConfig writes the configuration, which only the server's account may
// read: there is a password in it.
func natsConfig(dir string, port int, password string, as *account) (string, error) {
	path := filepath.Join(dir, "nats.conf")
	config := fmt.Sprintf("listen: \"127.0.0.1:%d\"\njetstream { store_dir: %s }\nauthorization { user: %s, password: %q }\n",
		port, strconv.Quote(dir), natsUser, password)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return "", err
	}
	return path, as.ownFile(path)
}
