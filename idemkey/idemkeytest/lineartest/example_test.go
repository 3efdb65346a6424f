package lineartest_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest/lineartest"
)

// A services stands for a store of one's own, and for the business rows beside it.
type services struct {
	idemkey.Store
	insert func(r *http.Request, e lineartest.Effect) error // in the transaction of the request
	rows   func(ctx context.Context) []lineartest.Effect
	kept   func(ctx context.Context) map[string]string // the keys that are completed, with their bodies
}

func open() services { return services{} }

// The test's own binary is the command of an instance: TestMain runs this if the variable
// says so.
func instance(leased bool) error {
	s := open()
	idem, err := idemkey.New(s, &idemkey.Options{SingleTenant: true})
	if err != nil {
		return err
	}
	handler := idem.Handler(lineartest.Handler(s.insert, nil))
	if leased { // owners are kept by a lease alone: an instance that hung for longer says so
		return lineartest.ServeWatched(handler, time.Second)
	}
	return lineartest.Serve(handler)
}

// Two processes on one store are killed and stopped at random, while clients send the same
// keys to both; then what the clients saw, and the rows, must be that of one run per key.
func ExampleStorm() {
	test := func(t *testing.T) {
		report, err := lineartest.Storm(t.Context(), lineartest.Config{Command: func(string) *exec.Cmd {
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), "SHOP_TEST_INSTANCE=1")
			return c
		}})
		if err != nil {
			t.Fatal(err)
		}
		if len(report.Missing) > 0 {
			t.Errorf("it proves nothing of %v", report.Missing)
		}
		s := open()
		var completed []string
		for key := range s.kept(t.Context()) {
			completed = append(completed, key)
		}
		if err := lineartest.Check(report.History); err != nil {
			t.Error(err)
		}
		if err := lineartest.Audit(report.History, s.rows(t.Context()), completed); err != nil {
			t.Error(err)
		}
	}
	_ = test
}

// What a store promises less whose owners are kept by a lease.
func ExampleCheckLeased() {
	judge := func(ctx context.Context, report *lineartest.Report, s services) error {
		if err := lineartest.CheckLeased(report.History); err != nil {
			return err
		}
		return lineartest.AuditLeased(report.History, s.rows(ctx), s.kept(ctx))
	}
	_ = judge
}

// Two clients were told of two runs under one key.
func ExampleCheck() {
	history := []lineartest.Op{
		{Client: 1, Key: "k", Body: "x", Call: 1, Return: 2, Kind: lineartest.Created, Response: "201 order 1"},
		{Client: 2, Key: "k", Body: "x", Call: 3, Return: 4, Kind: lineartest.Created, Response: "201 order 2"},
	}
	fmt.Println(lineartest.Check(history[:1]))
	fmt.Println(lineartest.Check(history) != nil)
	_ = instance
	// Output:
	// <nil>
	// true
}
