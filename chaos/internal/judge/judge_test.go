package judge

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/evidence"
	"github.com/sagamill/sagamill/chaos/internal/record"
)

func writeLines(path string, lines []string) error {
	return os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}

func judged(t *testing.T, f *fake) *Verdict {
	t.Helper()
	v, err := JudgeRun(f.save(t))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// broken lists the invariants that do not hold.
func broken(v *Verdict) (all []string) {
	for _, i := range v.Invariants {
		if i.Count > 0 {
			all = append(all, i.ID)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func explain(v *Verdict) string {
	var b strings.Builder
	for _, i := range v.Invariants {
		for _, o := range i.Offenders {
			b.WriteString("\n  " + i.ID + " " + o.Saga + " " + o.Key + ": " + o.What)
		}
	}
	return b.String()
}

func TestAGoodRunIsGreen(t *testing.T) {
	t.Parallel()
	v := judged(t, good())
	if v.Outcome != Green {
		t.Errorf("it is %s, missing %v%s", v.Outcome, v.Missing, explain(v))
	}
	for _, i := range v.Invariants {
		if i.Checked == 0 && i.ID != "I7" {
			t.Errorf("%s (%s) has looked at nothing", i.ID, i.Says)
		}
	}
}

func find[T any](all []T, is func(T) bool) *T {
	return &all[slices.IndexFunc(all, is)]
}

// Each planted violation makes its invariants fail. Related invariants may fail too.
func TestWhatIsWrongIsSeen(t *testing.T) {
	t.Parallel()
	for name, tt := range violations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := good()
			tt.spoil(f)
			v := judged(t, f)
			got := broken(v)
			for _, want := range strings.Fields(tt.want) {
				if !slices.Contains(got, want) {
					t.Errorf("%s is not broken, %v are%s", want, got, explain(v))
				}
			}
			if v.Outcome != Red {
				t.Errorf("the run is %s", v.Outcome)
			}
			for _, i := range v.Invariants {
				for _, o := range i.Offenders {
					if (o.Saga != "" || strings.HasPrefix(o.Key, "t1/")) && len(v.Timelines) == 0 {
						t.Errorf("%s %s has no timeline", o.Saga, o.Key)
					}
				}
			}
		})
	}
}

// A trip whose deadline passes while faults strike need not complete.
func TestATripMayBeLateWhileFaultsStrike(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"step hotel: no reply within 15s", "the saga's deadline of 1m30s has passed"} {
		f := good()
		f.compensateFirst(reason)
		if v := judged(t, f); v.Outcome != Green {
			t.Errorf("%q: it is %s, missing %v%s", reason, v.Outcome, v.Missing, explain(v))
		}
		f.rows["trip_service.saga"][0]["status"] = completed // whatever else is wrong with it
		if got := figure(t, judged(t, f), "trips-completed-percent").Value; got != 100 {
			t.Errorf("%q: %v%% of the trips that must have completed", reason, got)
		}
	}
}

// A run may be given more time to drain, and no more than that.
func TestADrainHasTheTimeThatItWasGiven(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]Outcome{90 * time.Second: Green, 91 * time.Second: Red} {
		f := good()
		f.run.Options.Drain, f.final.Drained = 90*time.Second, f.final.Healed+took
		if v := judged(t, f); v.Outcome != want {
			t.Errorf("a drain of %s is %s, want %s%s", took, v.Outcome, want, explain(v))
		}
	}
}

func figure(t *testing.T, v *Verdict, name string) Figure {
	t.Helper()
	i := slices.IndexFunc(v.Figures, func(f Figure) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("there is no figure %q", name)
	}
	return v.Figures[i]
}

func TestFiguresCountWhatTheySay(t *testing.T) {
	t.Parallel()
	f := good()
	f.injected = append(f.injected,
		record.Injection{At: time.Second, Kind: record.Duplicate, Handled: true}, // before the storm
		record.Injection{At: time.Minute, Kind: record.Duplicate},                // perhaps under way
		record.Injection{At: 3 * time.Minute, Kind: record.Replayed, Handled: true},
	)
	f.compensateFirst("step hotel: no reply within 15s")
	f.final.Drained = 0
	direct := 0 // to the broker, without a relay
	for _, i := range f.injected {
		if i.Kind != record.Replayed {
			direct++
		}
	}
	f.final.Received = 2*len(f.messages) + direct
	v := judged(t, f)
	if p := figure(t, v, "publishes-per-message"); p.Value != 2 || p.OK {
		t.Errorf("publishes: %+v, want 2 a message, which is too many", p)
	}
	for name, want := range map[string]float64{"duplicates-absorbed": 2, "replayed": 2, "trips-completed-percent": 0} {
		if got := figure(t, v, name).Value; got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if drain := figure(t, v, "drain-seconds"); drain.OK {
		t.Errorf("a run that has never drained has %+v", drain)
	}
}

// A run as large as a preset must meet its goals; a smaller one need not.
func TestAMissedGoalMakesALargeRunVoid(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		options record.Options
		want    Outcome
	}{
		"short":     {record.Options{Storm: 175 * time.Second, KillEvery: 180 * time.Millisecond, Sagas: 20_500}, Void},
		"long":      {record.Options{Storm: 30 * time.Minute, KillEvery: 160 * time.Millisecond, Sagas: 303_000}, Void},
		"few sagas": {record.Options{Storm: 175 * time.Second, KillEvery: 180 * time.Millisecond, Sagas: 500}, Green},
		"few kills": {record.Options{Storm: 175 * time.Second, KillEvery: time.Second, Sagas: 20_500}, Green},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := good()
			f.run.Options = tt.options
			for i := range mostAsked {
				f.samples = append(f.samples, record.Sample{At: 41*time.Second + time.Duration(i)*time.Second, Asked: true})
			}
			v := judged(t, f)
			if v.Outcome != tt.want || (tt.want == Void) != slices.Contains(v.Missing, "the goal of sigkills") {
				t.Errorf("it is %s, missing %v%s", v.Outcome, v.Missing, explain(v))
			}
		})
	}
}

// The listeners are declared twice: in this package, which imports no part of a run, and in package evidence,
// whose test compares them with the examples.
func TestListenersAreThoseOfTheExamples(t *testing.T) {
	t.Parallel()
	for _, l := range evidence.Listeners {
		if !slices.Contains(listeners, listener{l.Schema, l.Topic, l.Step, l.Undo}) {
			t.Errorf("%+v is not known", l)
		}
	}
	if len(listeners) != len(evidence.Listeners) {
		t.Errorf("there are %d, want %d", len(listeners), len(evidence.Listeners))
	}
}

// Deleting a queue discards its messages, including poison.
func TestPoisonInADeletedQueueIsNotExpected(t *testing.T) {
	t.Parallel()
	f := good()
	f.rows["flight_service.parked"] = nil
	f.events = append(f.events, record.Event{N: 2, At: time.Minute + time.Second, Until: time.Minute + 2*time.Second, Fault: "queue-delete", Target: "flight.book"})
	if v := judged(t, f); v.Outcome != Green {
		t.Errorf("it is %s%s", v.Outcome, explain(v))
	}
}

// A run without a required strike proves nothing about it.
func TestWhatHasNotStruckMakesARunVoid(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*fake){
		"a fault":            func(f *fake) { f.run.Required = append(f.run.Required, "broker-kill") },
		"an idle fault":      func(f *fake) { find(f.events, func(e record.Event) bool { return e.Fault == "sigkill" }).Open = 0 },
		"a failed fault":     func(f *fake) { find(f.events, func(e record.Event) bool { return e.Fault == "sigkill" }).Err = "no" },
		"a failpoint":        func(f *fake) { f.points = nil },
		"a lost COMMIT":      func(f *fake) { f.final.CommitsLost = 0 },
		"a swallowed answer": func(f *fake) { f.final.RepliesLost = 0 },
		"a fault on nobody":  func(f *fake) { find(f.events, func(e record.Event) bool { return e.Fault == "sigkill" }).Hits = 0 },
		"samples":            func(f *fake) { f.samples = f.samples[:3] },
		"samples that asked": func(f *fake) {
			for i := range f.samples {
				f.samples[i].Asked = i < 3
			}
		},
		"samples of the storm": func(f *fake) {
			for i := range f.samples {
				f.samples[i].At += time.Minute
			}
		},
		"replayed messages": func(f *fake) {
			f.injected = slices.DeleteFunc(f.injected, func(i record.Injection) bool { return i.Kind == record.Replayed })
		},
		"the replay": func(f *fake) { f.final.Effects = f.final.Effects[:1] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := good()
			spoil(f)
			if v := judged(t, f); v.Outcome != Void || len(v.Missing) == 0 {
				t.Errorf("it is %s, missing %v%s", v.Outcome, v.Missing, explain(v))
			}
		})
	}
}

// An incomplete file is no evidence.
func TestARunThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		record.RunFile, record.FinalFile, record.EventsFile, record.ClientFile, record.ChangesFile, record.OutboxFile, record.SamplesFile, record.InjectedFile,
		"tables/order_service.orders.jsonl.gz", "tables/flight_service.parked.jsonl.gz",
	} {
		dir := good().save(t)
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if _, err := JudgeRun(dir); err == nil {
			t.Errorf("without %s it is judged", name)
		}
	}
}
