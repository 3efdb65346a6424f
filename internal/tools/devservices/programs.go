package devservices

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
)

// installing keeps a process from running apt-get against itself.
var installing sync.Mutex

// Program returns the path of a program that is no service of its own. If it is missing,
// Debian's packages are installed where that is possible, which is said on log; else the
// error says what to install.
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

// lookProgram looks where daemons are as well, which is on root's PATH alone.
func lookProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if daemon := "/usr/sbin/" + name; err != nil && executable(daemon) {
		return daemon, nil
	}
	return path, err
}
