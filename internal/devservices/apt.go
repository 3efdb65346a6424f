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

// BrowserProgram is the browser in which the console is tested, and the package of Debian that has it.
const BrowserProgram = "chromium"

const (
	aptTimeout = 10 * time.Minute

	// policyFile is the program that decides whether a package may start its service. Exit code 101 forbids
	// it.
	policyFile    = "/usr/sbin/policy-rc.d"
	policyForbids = "#!/bin/sh\nexit 101\n"
)

// installVariable is the environment variable by which a user forbids installations.
const installVariable = "SAGAMILL_INSTALL"

// InstallForbidden reports whether the user forbids installing packages and fetching servers.
func InstallForbidden() (bool, error) {
	switch value := os.Getenv(installVariable); value {
	case "", "yes":
		return false, nil
	case "no":
		return true, nil
	default:
		return false, fmt.Errorf("devservices: %s: %q is neither yes nor no", installVariable, value)
	}
}

// announceInstall prints what is about to be installed or fetched, and why. It returns an error if the user forbids it.
func (r *run) announceInstall(why, action string) error {
	if r.noInstall {
		return serviceAbsent("%s=no forbids %s", installVariable, action)
	}
	r.printInstall("%s: %s (%s=no forbids it)", why, action, installVariable)
	return nil
}

// noServer returns the reason for installing a server: all other ways have failed.
func noServer(service string) string { return service + " neither runs here nor is installed" }

// aptWay installs the distribution's package of a service and then starts a private server from it.
func (r *run) aptWay(service, name string, private way) way {
	return way{"apt", func(ctx context.Context) (instance, error) {
		if err := r.aptInstall(ctx, noServer(service), name); err != nil {
			return instance{}, err
		}
		return private.try(ctx)
	}}
}

// aptInstall installs packages. It returns an error if there is no apt-get, or without root's rights.
func (r *run) aptInstall(ctx context.Context, why string, names ...string) error {
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return serviceAbsent("no apt-get")
	}
	if os.Geteuid() != 0 {
		return serviceAbsent("apt-get needs root")
	}
	return r.installPackages(ctx, aptGet{apt, policyFile}, why, names)
}

// An aptGet is the program, and the file that keeps packages from starting services.
type aptGet struct{ path, policy string }

// installPackages installs packages without starting their services: the run starts private ones. Before it does
// anything, it prints why, and how to forbid it.
func (r *run) installPackages(ctx context.Context, apt aptGet, why string, names []string) (err error) {
	if err := r.announceInstall(why, "installing "+strings.Join(names, ", ")+" with apt-get"); err != nil {
		return err
	}
	allow, err := forbidServices(apt.policy)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, allow()) }()

	env := append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	get := func(args ...string) error {
		args = append([]string{"-q", "-o", "DPkg::Lock::Timeout=120"}, args...) // another run may hold it
		_, err := program{path: apt.path, args: args, env: env}.runProgram(ctx, aptTimeout)
		return err
	}
	// Without a network, package lists of the image or of an earlier update may do.
	if err := get("update"); err != nil {
		r.printLine("apt-get update failed, so the existing package lists are used: %s", oneLine(err))
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
// is possible and the user does not forbid it. Before that it writes a line to log. Otherwise the error says what to
// install. A test does not call Program, because `go test` hides that line: see [FindProgram].
func Program(ctx context.Context, log io.Writer, name string, packages ...string) (string, error) {
	installing.Lock()
	defer installing.Unlock()
	if path, err := FindProgram(name, packages...); err == nil {
		return path, nil
	}
	forbidden, err := InstallForbidden()
	if err != nil {
		return "", err
	}
	if err := (&run{log: log, noInstall: forbidden}).aptInstall(ctx, name+" is needed and not installed", packages...); err != nil {
		return "", fmt.Errorf("%w: %w", missingProgram(name, packages), err)
	}
	return FindProgram(name, packages...)
}

// FindProgram returns the path of an installed program. Otherwise the error says what to install. It also looks in
// /usr/sbin, where daemons are, which only root has on PATH.
func FindProgram(name string, packages ...string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	if daemon := "/usr/sbin/" + name; executable(daemon) {
		return daemon, nil
	}
	return "", missingProgram(name, packages)
}

func missingProgram(name string, packages []string) error {
	return fmt.Errorf("no %s: install it (on Debian and Ubuntu: apt-get install %s)", name, strings.Join(packages, " "))
}
