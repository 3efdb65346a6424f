package site

import (
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/sagamill/sagamill/internal/devservices"
)

// A spawner starts processes that die with this one. For the kernel the parent is the thread that forked, so
// one thread starts all of them and lasts until stopSpawner.
type spawner struct {
	orders chan order
	ended  sync.WaitGroup
	thread atomic.Int64 // the parent of all processes, once it has started one
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

// startChild starts cmd. The kernel sends it the signal death if this process dies.
func (s *spawner) startChild(cmd *exec.Cmd, death syscall.Signal) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	devservices.DieWithParent(cmd.SysProcAttr, death)
	err := make(chan error, 1)
	s.orders <- order{cmd, err}
	return <-err
}

// stopSpawner ends the thread, and with it every process that it started and that still runs. startChild must
// not be called afterwards.
func (s *spawner) stopSpawner() {
	close(s.orders)
	s.ended.Wait()
}
