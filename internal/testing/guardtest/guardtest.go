// Package guardtest checks the state after a function of the user panics, or ends its goroutine.
//
// It finds the functions in the options themselves. A function without a row in a package's test fails that
// test.
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

// Value is the value of the panics.
const Value = "a panic of the user's"

// Goexit is the result of a function that ended its goroutine.
const Goexit = "Goexit"

// Ways are the ways in which a function of the user fails.
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

// Want returns the [End] of a caller that the function's panic or exit reaches unchanged.
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
		name, _, _ := strings.Cut(t.Name(), "[") // without the type parameters
		names = append(names, functionsOf(t, name)...)
	}
	return names
}

func functionsOf(t reflect.Type, path string) (names []string) {
	for i := range t.NumField() {
		field := t.Field(i)
		name := path + "." + field.Name
		switch {
		case !field.IsExported(), field.Type == reflect.TypeFor[reflect.Type](): // whose methods are Go's
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

// Log returns a logger whose handler fails in the given way.
func Log(blow func()) *slog.Logger { return slog.New(handler{blow}) }

type handler struct{ blow func() }

func (handler) Enabled(context.Context, slog.Level) bool { return true }
func (h handler) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h handler) WithGroup(string) slog.Handler          { return h }

func (h handler) Handle(context.Context, slog.Record) error {
	h.blow()
	return nil
}

// Idle fails the test unless all connections of pool are returned. A connection that holds a transaction or a
// lock is not returned.
func Idle(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	state := func() string { return fmt.Sprintf("%d connections are in use", pool.Stat().AcquiredConns()) }
	faulttest.Await(t, "no connection is in use", func() bool { return pool.Stat().AcquiredConns() == 0 }, state)
}

// Goroutines returns a function that fails the test if goroutines have been added since the call of
// Goroutines. No other test may run meanwhile.
func Goroutines(t testing.TB) (verify func()) {
	before := goleak.IgnoreCurrent()
	return func() {
		t.Helper()
		goleak.VerifyNone(t, before,
			goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"))
	}
}
