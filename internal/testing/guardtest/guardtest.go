// Package guardtest checks what is left when a function that the user has given panics, or
// ends its goroutine.
//
// The functions come from the options themselves: one that a package's test has no row
// for fails it.
package guardtest

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/sagamill/sagamill/internal/testing/faulttest"
)

// Value is that of the panics.
const Value = "a panic of the user's"

// Goexit is how a function ended that has ended its goroutine.
const Goexit = "Goexit"

// Ways are how a function of the user's goes wrong.
var Ways = map[string]func(){
	"panic":  func() { panic(Value) },
	"goexit": runtime.Goexit,
}

// End returns how do ended: nil, the value of its panic, or [Goexit].
func End(do func()) any {
	ended := make(chan any)
	go func() {
		var how any = Goexit
		defer func() { ended <- how }()
		func() {
			defer func() {
				if value := recover(); value != nil {
					how = value
				}
			}()
			do()
			how = nil
		}()
	}()
	return <-ended
}

// Want is what [End] returns of a caller that the function's end reaches unchanged.
func Want(way string) any {
	if way == "goexit" {
		return Goexit
	}
	return Value
}

// Functions returns the functions that values of the given structs may hold, by name:
// fields of a function type, the methods of fields of an interface type, and Logger of
// fields with a logger.
func Functions(structs ...any) (names []string) {
	for _, s := range structs {
		t := reflect.TypeOf(s)
		name, _, _ := strings.Cut(t.Name(), "[") // of a generic type
		names = append(names, functionsOf(t, name)...)
	}
	return names
}

func functionsOf(t reflect.Type, path string) (names []string) {
	for i := range t.NumField() {
		field := t.Field(i)
		name := path + "." + field.Name
		switch {
		case !field.IsExported():
		case field.Type.Kind() == reflect.Func, field.Type == reflect.TypeFor[*slog.Logger]():
			names = append(names, name)
		case field.Type.Kind() == reflect.Interface:
			for j := range field.Type.NumMethod() {
				names = append(names, name+"."+field.Type.Method(j).Name)
			}
		case field.Type.Kind() == reflect.Struct && field.Type.PkgPath() == t.PkgPath():
			names = append(names, functionsOf(field.Type, name)...)
		}
	}
	return names
}

// Covered fails the test unless rows has a row for each function of structs. A row may have
// several: its name has all of them, separated by a space.
func Covered[R any](t *testing.T, rows map[string]R, structs ...any) {
	t.Helper()
	var covered []string
	for name := range rows {
		covered = append(covered, strings.Fields(name)...)
	}
	for _, name := range Functions(structs...) {
		if !slices.Contains(covered, name) {
			t.Errorf("nothing here calls %s with a function that panics: add a row that does", name)
		}
	}
}

// Log is a logger whose handler goes wrong in the given way.
func Log(blow func()) *slog.Logger { return slog.New(handler{blow}) }

type handler struct{ blow func() }

func (handler) Enabled(context.Context, slog.Level) bool { return true }
func (h handler) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h handler) WithGroup(string) slog.Handler          { return h }

func (h handler) Handle(context.Context, slog.Record) error {
	h.blow()
	return nil
}

// Idle fails the test unless the connections of pool all come back, which none does that
// holds a transaction or a lock.
func Idle(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	state := func() string { return fmt.Sprintf("%d connections are in use", pool.Stat().AcquiredConns()) }
	faulttest.Await(t, "no connection is in use", func() bool { return pool.Stat().AcquiredConns() == 0 }, state)
}

// Goroutines returns a function that fails the test if goroutines are left that were not there
// when Goroutines was called. No other test may run meanwhile.
func Goroutines(t testing.TB) (verify func()) {
	before := goleak.IgnoreCurrent()
	return func() {
		t.Helper()
		goleak.VerifyNone(t, before,
			goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"))
	}
}
