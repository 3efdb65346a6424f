package devservices

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

const (
	aptTimeout = 10 * time.Minute

	// policyFile is the program that decides whether a package may start its service. Exit code 101 forbids
	// it.
	policyFile    = "/usr/sbin/policy-rc.d"
	policyForbids = "#!/bin/sh\nexit 101\n"
)

// aptPostgres installs the distribution's PostgreSQL and then starts a private server from it.
func (r *run) aptPostgres(ctx context.Context) (instance, error) {
	if err := r.aptInstall(ctx, "postgresql"); err != nil {
		return instance{}, err
	}
	return r.privatePostgres(ctx)
}

// aptRabbit does the same for RabbitMQ.
func (r *run) aptRabbit(ctx context.Context) (instance, error) {
	if err := r.aptInstall(ctx, "rabbitmq-server"); err != nil {
		return instance{}, err
	}
	return r.privateRabbit(ctx)
}

// aptRedis does the same for Redis.
func (r *run) aptRedis(ctx context.Context) (instance, error) {
	if err := r.aptInstall(ctx, "redis-server"); err != nil {
		return instance{}, err
	}
	return r.privateRedis(ctx)
}

// Install installs packages with apt-get, without starting their services, and writes a line to log. It
// returns an error if there is no apt-get, or without root's rights.
func Install(ctx context.Context, log io.Writer, names ...string) error {
	return (&run{log: log}).aptInstall(ctx, names...)
}

// aptInstall installs packages without starting their services: the run starts private ones.
func (r *run) aptInstall(ctx context.Context, names ...string) (err error) {
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return serviceAbsent("no apt-get")
	}
	if os.Geteuid() != 0 {
		return serviceAbsent("apt-get needs root")
	}
	r.printLine("installing %s with apt-get", strings.Join(names, ", "))
	allow, err := forbidServices(policyFile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, allow()) }()

	env := append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	get := func(args ...string) error {
		args = append([]string{"-q", "-o", "DPkg::Lock::Timeout=120"}, args...) // another run may hold it
		_, err := program{path: apt, args: args, env: env}.runProgram(ctx, aptTimeout)
		return err
	}
	// Without a network, package lists of the image or of an earlier update may do.
	if err := get("update"); err != nil {
		r.printLine("apt-get update did not work, using the lists there are: %s", oneLine(err))
	}
	return get(append([]string{"install", "-y", "--no-install-recommends"}, names...)...)
}

// forbidServices keeps packages from starting services until allow is called. It leaves an existing policy
// alone.
func forbidServices(path string) (allow func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, os.ErrExist) {
		return func() error { return nil }, nil
	}
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString(policyForbids)
	return func() error { return os.Remove(path) }, errors.Join(err, f.Close())
}

// installing allows one apt-get at a time in this process.
var installing sync.Mutex

// Program returns the path of a program. If the program is missing, it installs Debian's packages where that
// is possible, and writes a line to log. Otherwise the error says what to install.
func Program(ctx context.Context, log io.Writer, name string, packages ...string) (string, error) {
	installing.Lock()
	defer installing.Unlock()
	if path, err := lookProgram(name); err == nil {
		return path, nil
	}
	err := Install(ctx, log, packages...)
	if err == nil {
		var path string
		if path, err = lookProgram(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no %s: install it (on Debian and Ubuntu: apt-get install %s): %w", name, strings.Join(packages, " "), err)
}

// lookProgram also looks in /usr/sbin, where daemons are, which only root has on PATH.
func lookProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if daemon := "/usr/sbin/" + name; err != nil && executable(daemon) {
		return daemon, nil
	}
	return path, err
}
