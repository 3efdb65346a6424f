package flow_test

import (
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/stepkey"
)

func TestParseReplyNRefuses(t *testing.T) {
	t.Parallel()
	for _, n := range []string{
		"", ".d", "1.1", "1.1.", "1.1.x", "d", "1.d", "0.1.d", "1.0.d", "01.1.d", "1.+1.d", "-1.1.d", "1.1.1.d", "A.1.d", "!.1.d", "1-1.d", "1-.1.d", "1..d",
		"99999999999999999999.1.d", "1.1 .d",
	} {
		if to, undo, err := flow.ParseReplyN(n); err == nil {
			t.Errorf("ParseReplyN(%q) = %+v, %t; want an error", n, to, undo)
		}
	}
}

// The longest n that there is has room in a step key.
func TestTheLongestNFits(t *testing.T) {
	t.Parallel()
	path := ""
	for range flow.MaxLevels {
		path = flow.N(path, machine.MaxSteps, machine.MaxAttempts)
	}
	if n := flow.Mark("0199-deadbeef", flow.ReplyN(path, true, "abcd")); len(n) > stepkey.MaxN || (stepkey.Key{Key: "k", Step: "s", N: n}).Check() != nil {
		t.Errorf("%s has %d bytes, there is room for %d", n, len(n), stepkey.MaxN)
	}
}

func FuzzParseReplyNReversesReplyN(f *testing.F) {
	f.Add("1.1", 2, 1, false, "")
	f.Add("", 100, 1000, true, "x1y2")
	f.Fuzz(func(t *testing.T, path string, step, attempt int, undo bool, tell string) {
		if step < 1 || attempt < 1 || strings.ContainsAny(tell, ".") {
			return
		}
		n := flow.ReplyN(flow.N(path, step, attempt), undo, tell)
		to, gotUndo, err := flow.ParseReplyN(n)
		want := flow.Address{Path: path, Step: step, Attempt: attempt}
		if err != nil || to != want || gotUndo != undo {
			t.Errorf("ParseReplyN(%q) = %+v, %t, %v; want %+v, %t", n, to, gotUndo, err, want, undo)
		}
	})
}

func FuzzParseReplyNOfAnything(f *testing.F) {
	f.Add("3.1-2.1.d")
	f.Fuzz(func(t *testing.T, n string) {
		to, undo, err := flow.ParseReplyN(n)
		if err != nil {
			return
		}
		if again := flow.ReplyN(flow.N(to.Path, to.Step, to.Attempt), undo, ""); !strings.HasPrefix(n, again) {
			t.Errorf("%q is read as that of %q", n, again)
		}
	})
}
