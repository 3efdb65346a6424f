package site

import (
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/sagamill/sagamill/internal/tools/devservices"
)

// A spawner starts processes that die with this one. The kernel takes the thread
// that forked for the parent, so all are started by one thread, which lasts until
// stop.
type spawner struct {
	orders chan order
	ended  sync.WaitGroup
	thread atomic.Int64 // the parent of all, once it has started one
}

type order struct {
	cmd *exec.Cmd
	err chan<- error
}

func newSpawner() *spawner {
	s := &spawner{orders: make(chan order)}
	s.ended.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for o := range s.orders {
			s.thread.Store(int64(syscall.Gettid()))
			o.err <- o.cmd.Start()
		}
	})
	return s
}

// startChild starts cmd, which gets death if this process dies.
func (s *spawner) startChild(cmd *exec.Cmd, death syscall.Signal) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	devservices.DieWithParent(cmd.SysProcAttr, death)
	err := make(chan error, 1)
	s.orders <- order{cmd, err}
	return <-err
}

// stopSpawner ends the thread, and with it whatever it has started and still runs. Nobody
// calls start any more.
func (s *spawner) stopSpawner() {
	close(s.orders)
	s.ended.Wait()
}
