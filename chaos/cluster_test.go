package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/chaos/internal/cluster"
)

func TestOfCluster(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args, rest string
		asked      bool
	}{
		{"-brief -seed 1", "-brief -seed 1", false},
		{"-cluster", "", true},
		{"-brief --cluster -seed 1", "-brief -seed 1", true},
	} {
		rest, asked := ofCluster(strings.Fields(tt.args))
		if asked != tt.asked || !slices.Equal(rest, strings.Fields(tt.rest)) {
			t.Errorf("%q: %q, %t; want %q, %t", tt.args, rest, asked, tt.rest, tt.asked)
		}
	}
}

// TestJudgeCluster checks the exit codes: an invariant counts in each run, a goal only in a whole run.
func TestJudgeCluster(t *testing.T) {
	t.Parallel()
	late := cluster.Row{OfRed: true}
	for _, tt := range []struct {
		name    string
		outcome cluster.Outcome
		brief   bool
		want    int
	}{
		{"all is well", cluster.Outcome{Written: 1, Completed: 1}, false, exitGreen},
		{"a goal is missed", cluster.Outcome{Written: 1, Completed: 1, Rows: []cluster.Row{late}}, false, exitVoid},
		{"a goal is missed in a brief run", cluster.Outcome{Written: 1, Completed: 1, Rows: []cluster.Row{late}}, true, exitGreen},
		{"an order is lost", cluster.Outcome{Written: 1}, false, exitRed},
		{"an order is lost in a brief run", cluster.Outcome{Written: 1}, true, exitRed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			opts := &cluster.Options{Orders: 1, Brief: tt.brief}
			report := &cluster.Report{Options: *opts, Outcomes: []*cluster.Outcome{&tt.outcome}}
			if code, err := judgeCluster(opts, report, io.Discard); code != tt.want || err != nil {
				t.Errorf("exit code %d, %v; want %d", code, err, tt.want)
			}
		})
	}
}
