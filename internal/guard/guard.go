// Package guard calls functions that users have given to the product. A panic in one of
// them becomes the error of the operation that called it, and the process lives on.
package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// A PanicError is the panic of a function that was called by this package.
type PanicError struct {
	Value any
	Stack []byte
}

// Error does not repeat the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panicked: %v", e.Value) }

// ErrGoexit reports that a function neither returned nor panicked: it called
// runtime.Goexit, as FailNow of package testing does.
var ErrGoexit = errors.New("ended its goroutine")

// Call returns the error of do. A panic is a [PanicError]. A call of runtime.Goexit passes
// on: the caller's deferred functions run, and the goroutine ends.
func Call(do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	return do()
}

// Apart is [Call] on a new goroutine, so that the caller's goroutine survives
// runtime.Goexit: the error is then [ErrGoexit].
func Apart(do func() error) error {
	done := make(chan error, 1)
	go func() {
		err := ErrGoexit
		defer func() { done <- err }()
		err = Call(do)
	}()
	return <-done
}

// Hook calls do. A panic is logged under name, which is the name of the user's function, and has
// no other effect.
func Hook(ctx context.Context, log *slog.Logger, name string, do func()) {
	err := Call(func() error { do(); return nil })
	if err != nil {
		Log(ctx, log, name, err)
	}
}

// Log logs that the function called name has failed by err, with the stack of a panic.
func Log(ctx context.Context, log *slog.Logger, name string, err error) {
	var stack string
	if panicked := new(PanicError); errors.As(err, &panicked) {
		stack = string(panicked.Stack)
	}
	log.ErrorContext(ctx, name+" failed", "error", err, "stack", stack)
}
