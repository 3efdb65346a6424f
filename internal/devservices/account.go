package devservices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"time"
)

// accountTimeout bounds the trial run under another account.
const accountTimeout = 5 * time.Second

// An account is the operating system account of a server. The nil account is our account.
type account struct {
	name     string
	uid, gid int
}

// ownFile gives path to the account.
func (a *account) ownFile(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// unprivileged returns the first of names that exists and that this process may switch to. It returns nil
// without root's rights, because the process is unprivileged already. PostgreSQL refuses to run as root.
func unprivileged(ctx context.Context, names ...string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	var errs []error
	for _, name := range append(names, "nobody", "daemon") {
		a, err := lookUpAccount(name)
		if err == nil {
			// The user namespace of a container may not map the account. Only a trial shows that.
			_, err = program{path: "/bin/sh", args: []string{"-c", ":"}, dir: "/", as: a}.runProgram(ctx, accountTimeout)
		}
		if err == nil {
			return a, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no unprivileged account to run as: %w", errors.Join(errs...))
}

// lookUpAccount returns the account called name.
func lookUpAccount(name string) (*account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return nil, err
	}
	return &account{name: name, uid: uid, gid: gid}, nil
}
