package traceheader_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/internal/traceheader"
)

func TestAdd(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range 3 {
		many[fmt.Sprint(i)] = "v"
	}
	both := map[string]string{"traceparent": "p", "tracestate": "s"}
	tests := []struct {
		name          string
		own           map[string]string
		limit         int
		parent, state string
		want          map[string]string
	}{
		{"both", nil, 64, "p", "s", both},
		{"no state", nil, 64, "p", "", map[string]string{"traceparent": "p"}},
		{"no parent", nil, 64, "", "s", nil},
		{"own headers stay", map[string]string{"x": "1"}, 64, "p", "s", map[string]string{"x": "1", "traceparent": "p", "tracestate": "s"}},
		{"own trace wins", map[string]string{"traceparent": "o"}, 64, "p", "s", map[string]string{"traceparent": "o"}},
		{"own state wins", map[string]string{"tracestate": "o"}, 64, "p", "s", map[string]string{"traceparent": "p", "tracestate": "o"}},
		{"no room", many, 3, "p", "s", many},
		{"room for one", map[string]string{"a": "1", "b": "2"}, 3, "p", "s", map[string]string{"a": "1", "b": "2", "traceparent": "p"}},
		{"too many bytes", map[string]string{"x": strings.Repeat("x", 1988)}, 64, "p", "s", map[string]string{"x": strings.Repeat("x", 1988)}},
		{"bytes for one", map[string]string{"x": strings.Repeat("x", 1987)}, 64, "p", "s", map[string]string{"x": strings.Repeat("x", 1987), "traceparent": "p"}},
		{"long parent", nil, 64, strings.Repeat("p", 513), "s", nil},
		{"longest state", nil, 64, "p", strings.Repeat("s", 512), map[string]string{"traceparent": "p", "tracestate": strings.Repeat("s", 512)}},
		{"long state", nil, 64, "p", strings.Repeat("s", 513), map[string]string{"traceparent": "p"}},
		{"hostile parent", nil, 64, "p\r\nx: y", "s", nil},
		{"hostile state", nil, 64, "p", "s\x00", map[string]string{"traceparent": "p"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			before := maps.Clone(tt.own)
			got := traceheader.Add(tt.own, traceheader.Limits{Count: tt.limit, Bytes: 2000}, tt.parent, tt.state)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tt.own); diff != "" {
				t.Errorf("the caller's headers changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestKeep(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("s", 513)
	for _, tt := range [][4]string{{"p", "s", "p", "s"}, {"p", long, "p", ""}, {"p", "a\x00", "p", ""}, {long, "s", "", ""}, {"", "s", "", ""}} {
		if parent, state := traceheader.Keep(tt[0], tt[1]); parent != tt[2] || state != tt[3] {
			t.Errorf("Keep(%.9q, %.9q) = %.9q, %.9q; want %q, %q", tt[0], tt[1], parent, state, tt[2], tt[3])
		}
	}
}
