package outbox

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// A log is turned into the other kind and back with something of every kind in
// it; nothing is lost, nothing that is published is published again, and each
// key keeps its order.
func TestLogsAreTurnedIntoEachOther(t *testing.T) {
	t.Parallel()
	for _, way := range [][]Log{
		{LogTable}, {LogTable, LogAppend}, {LogAppend, LogTable, LogAppend, LogTable}, {LogTable, LogTable, LogAppend, LogAppend},
	} {
		t.Run(fmt.Sprint(way), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			want := f.halfPublished(t)
			allow := f.refuse("r0")
			for i, log := range way {
				f.write(t, msg("w", fmt.Sprint("w", i)), msg("r", fmt.Sprint("r", 4+i)))
				want["w"] = append(want["w"], fmt.Sprint("w", i))
				want["r"] = append(want["r"], fmt.Sprint("r", 4+i))
				f.due(t)
				r := f.relay(t, RelayOptions{Log: log, Lanes: 1, RetryBase: time.Hour, RetryCap: time.Hour})
				mustSettle(t, r)
				if s := f.stats(t, r); s.Refused != 1 || s.Stored+s.Waiting != 4+i {
					t.Errorf("with %s: %+v, want one refused and %d behind it", log, s, 4+i)
				}
			}
			allow()
			f.due(t)
			r := f.relay(t, RelayOptions{Log: way[len(way)-1]})
			mustSettle(t, r)
			mustSettle(t, r)
			if s := f.stats(t, r); s != (counts{}) {
				t.Errorf("left over: %+v", s)
			}
			f.checkAll(t, want)
			if all, first := f.broker.payloads(), f.broker.firsts(); len(all) != len(first) {
				t.Errorf("published again: %q", all)
			}
			for _, p := range f.broker.firsts() {
				if strings.HasPrefix(p, "p") || strings.HasPrefix(p, "q") {
					t.Errorf("%s had been published long before", p)
				}
			}
		})
	}
}

// The cursor from before a log was a table says nothing about what the table
// still holds.
func TestATableThatNothingWasPublishedFromIsTurnedBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	want := f.halfPublished(t)
	f.broker.answer = func(Publication) error { return errAway }
	if err := settle(t, f.relay(t, RelayOptions{Log: LogTable})); !errors.Is(err, errAway) {
		t.Fatalf("relay: %v", err)
	}
	f.broker.answer = nil
	f.due(t)
	r := f.relay(t, RelayOptions{})
	mustSettle(t, r)
	mustSettle(t, r)
	if s := f.stats(t, r); s != (counts{}) {
		t.Errorf("left over: %+v", s)
	}
	f.checkAll(t, want)
}
