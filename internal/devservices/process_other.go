//go:build !linux

package devservices

import (
	"context"
	"errors"
	"strconv"
	"syscall"
	"time"
)

const psTimeout = 5 * time.Second

// DieWithParent does nothing: this system has no such signal. The sweep of the next run stops the servers of
// a dead one.
func DieWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// replaceUsr fails for a directory: only Linux has mount namespaces.
func replaceUsr(usr string) error {
	if usr != "" {
		return errors.ErrUnsupported
	}
	return nil
}

// commandLine returns the command line of pid, "" if there is none.
func commandLine(pid int) string {
	out, err := program{path: "ps", args: []string{"-ww", "-o", "command=", "-p", strconv.Itoa(pid)}}.runProgram(context.Background(), psTimeout)
	if err != nil {
		return ""
	}
	return out
}
