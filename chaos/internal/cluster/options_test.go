package cluster

import (
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/chaos/internal/cluster/fault"
)

func parse(t *testing.T, line string) *Options {
	t.Helper()
	o, err := ParseOptions(strings.Fields(line), io.Discard)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return o
}

func TestParse(t *testing.T) {
	t.Parallel()
	full := Options{Orders: defaultOrders, Rate: defaultRate, Colours: defaultColours, Keys: defaultKeys, Seed: 1, NoMajority: defaultNoMajority}
	for _, tt := range []struct {
		line string
		want func(*Options)
	}{
		{"", func(*Options) {}},
		{"-brief", func(o *Options) { o.Brief, o.Orders, o.Rate = true, briefOrders, briefRate }},
		{"-brief -orders 9 -rate 8", func(o *Options) { o.Brief, o.Orders, o.Rate = true, 9, 8 }},
		{"-single-active", func(o *Options) { o.Order = OrderOnly }},
		{"-single-active=false", func(o *Options) { o.Order = OrderNever }},
		{"-no-majority 5m -only tls,autoheal", func(o *Options) { o.NoMajority, o.Only = 5*time.Minute, []string{"tls", "autoheal"} }},
	} {
		t.Run(tt.line, func(t *testing.T) {
			t.Parallel()
			want := full
			tt.want(&want)
			if diff := cmp.Diff(&want, parse(t, tt.line+" -seed 1")); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"-orders 0", "-rate 0", "-keys 0", "-colours 0", "-no-majority 1ms", "-only kill-everything", "more", "-single-active -only tls"} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			if _, err := ParseOptions(strings.Fields(line), io.Discard); err == nil {
				t.Error("no error")
			}
		})
	}
}

// names returns the full paths of all faults of a plan.
func names(t *testing.T, o *Options) (all []string) {
	t.Helper()
	plans, err := planStages(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, plan := range plans {
		for _, st := range plan {
			for _, f := range st.faults {
				all = append(all, st.String()+"/"+f.Name)
			}
		}
	}
	return all
}

func TestPick(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		line string
		want []string
	}{
		{"-only kill-leader", []string{"ignore/plain/kill-leader", "ignore/ordered/kill-leader", "ignore/tls/kill-leader"}},
		{"-only kill-leader -single-active", []string{"ignore/ordered/kill-leader"}},
		{"-only ignore/ordered", ignoreOrdered()},
		{"-only autoheal -single-active=false", []string{"autoheal/plain/partition"}},
		{"-only ignore/classic", []string{"ignore/classic/kill-idle-node", "ignore/classic/kill-host"}},
		{"-only ignore/ordered/kill-all-nodes", []string{"ignore/ordered/kill-all-nodes"}},
		{"-brief", []string{"pause_minority/plain/partition", "pause_minority/plain/kill-leader", "pause_minority/plain/red-no-majority"}},
	} {
		t.Run(tt.line, func(t *testing.T) {
			t.Parallel()
			got := names(t, parse(t, tt.line))
			slices.Sort(got)
			slices.Sort(tt.want)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

// ignoreOrdered returns all faults of quorum queues, on keys with an order.
func ignoreOrdered() (all []string) {
	for _, name := range ofQuorum {
		all = append(all, "ignore/ordered/"+name)
	}
	return all
}

// TestLater checks that all faults of quorum queues strike keys with an order, if time permits.
func TestLater(t *testing.T) {
	t.Parallel()
	plans, err := planStages(parse(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	st := plans[0][1]
	if st.kind != ordered || len(st.faults) != len(ofOrder) || len(st.later) != len(ofQuorum) {
		t.Errorf("stage %s has %d faults and %d later, want %d and %d", &st, len(st.faults), len(st.later), len(ofOrder), len(ofQuorum))
	}
}

// TestEachFaultStrikes checks a whole run without a selection.
func TestEachFaultStrikes(t *testing.T) {
	t.Parallel()
	struck := strings.Join(names(t, parse(t, "")), " ")
	for _, f := range fault.AllFaults(time.Second) {
		if !strings.Contains(struck, "/"+f.Name) {
			t.Errorf("%s strikes in no stage", f.Name)
		}
	}
}

// TestShare checks that both kinds of quorum queues get the same number of orders.
func TestShare(t *testing.T) {
	t.Parallel()
	const orders = 220_000
	plans, err := planStages(parse(t, "-orders "+strconv.Itoa(orders)))
	if err != nil {
		t.Fatal(err)
	}
	sum, kinds := 0, map[string]int{}
	for _, plan := range plans {
		for _, st := range plan {
			sum, kinds[st.kind] = sum+st.orders, kinds[st.kind]+st.orders
		}
	}
	if sum < orders || sum > orders+100 {
		t.Errorf("the stages write %d orders, want %d", sum, orders)
	}
	if kinds[plain]/100 != 1000 || kinds[ordered]/100 != 1000 || kinds[classic]/100 != 100 || kinds[secure]/100 != 100 {
		t.Errorf("the kinds get %v", kinds)
	}
}
