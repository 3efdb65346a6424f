package sagatest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/saga"
)

// A trip is the state of the tests' saga.
type trip struct {
	Guest   string   `json:"guest"`
	Numbers []string `json:"numbers,omitempty"`
}

type request struct {
	Guest string `json:"guest"`
}

type booking struct {
	Number string `json:"number"`
}

func (t *trip) request() request { return request{Guest: t.Guest} }

func (t *trip) booked(b booking) { t.Numbers = append(t.Numbers, b.Number) }

// book is a remote step.
func book(name string) saga.Step[trip] {
	return saga.Step[trip]{
		Name: name,
		Do:   saga.Remote(name+".book", (*trip).request, (*trip).booked),
		Undo: saga.Remote[trip, request, any](name+".cancel", (*trip).request, nil),
	}
}

// A recorder is a test that is expected to fail.
type recorder struct {
	testing.TB
	ctx      context.Context
	log      []string
	failed   bool
	cleanups []func()
}

// stopped is the panic by which a recorder's test ends.
type stopped struct{}

func (r *recorder) Helper()                  {}
func (r *recorder) Context() context.Context { return r.ctx }
func (r *recorder) Failed() bool             { return r.failed }
func (r *recorder) Cleanup(f func())         { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Logf(f string, a ...any)  { r.log = append(r.log, fmt.Sprintf(f, a...)) }
func (r *recorder) Errorf(f string, a ...any) {
	r.Logf(f, a...)
	r.failed = true
}

func (r *recorder) Fatalf(f string, a ...any) {
	r.Errorf(f, a...)
	panic(stopped{})
}

// text is all that was said.
func (r *recorder) text() string { return strings.Join(r.log, "\n") }

func (r *recorder) Fatal(a ...any) { r.Fatalf("%s", fmt.Sprint(a...)) }

// failure runs do as a test that must fail, and returns what that has said.
func failure(t *testing.T, do func(t testing.TB)) string {
	t.Helper()
	r := &recorder{ctx: t.Context()}
	func() {
		defer func() {
			if value := recover(); value != nil && value != (stopped{}) {
				panic(value)
			}
		}()
		do(r)
	}()
	for _, f := range r.cleanups {
		f()
	}
	if !r.failed {
		t.Fatal("it did not fail")
	}
	return strings.Join(r.log, "\n")
}
