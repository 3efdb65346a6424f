package judge

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// The beginning of an Exit's Args for an unexpected end, and a part of the Args of a process that did not end
// on SIGTERM.
const (
	byItself = "by itself" // the harness did not cause the end
	byFuse   = "by its fuse"
	killed   = "killed"
	hung     = "had to be killed"
)

func (c *run) judgeSite() []*Invariant {
	drainWithin := c.run.Options.DrainWithin()
	drained := &Invariant{ID: "I13", Says: fmt.Sprintf("everything is done within %s of the end of all faults", drainWithin)}
	drained.checkThat(c.final.Drained > 0, Offender{}, "left: %s", clipList(c.final.Left))
	drained.checkThat(c.drainTime() <= drainWithin, Offender{}, "it took %s or more", c.drainTime().Round(time.Millisecond))

	clean := &Invariant{ID: "I14", Says: "every process ends when told to, none by itself, its goroutines do not pile up, and nothing of it is left in the servers"}
	for _, s := range c.final.Stopped {
		clean.checkThat(s.Code == 0, Offender{Key: s.Name}, "%s ended with code %d after %s", s.Name, s.Code, s.Took.Round(time.Millisecond))
	}
	clean.checkThat(len(c.final.Stopped) > 0, Offender{}, "no process was told to stop")
	for _, e := range c.events {
		if e.Fault == record.Exit {
			clean.checkThat(!strings.HasPrefix(e.Args, byItself) && !strings.Contains(e.Args, hung), Offender{Key: e.Target}, "at %s %s ended %s", e.At.Round(time.Millisecond), e.Target, e.Args)
		}
	}
	clean.checkThat(c.final.Connections == 0 && c.final.IdleInTx == 0 && c.final.Locks == 0 && c.final.BrokerConnections == 0, Offender{},
		"%d connections, %d idle in transaction, %d locks, %d connections to the broker", c.final.Connections, c.final.IdleInTx, c.final.Locks, c.final.BrokerConnections)

	for n, after := range c.final.Goroutines {
		more := record.MoreGoroutines(c.final.Goroutines[0], after)
		clean.checkThat(len(after) > 0 && len(more) == 0, Offender{}, "after replay %d, goroutines: %v of %s, and there were %v", n, after, clipList(more), c.final.Goroutines[0])
	}
	clean.checkThat(len(c.final.Goroutines) >= len(c.final.Effects) || c.final.Drained == 0, Offender{}, "goroutines were counted %d times, not %d", len(c.final.Goroutines), len(c.final.Effects))

	always := &Invariant{ID: "I3", Says: "money and stock are conserved at every moment of the storm"}
	for _, s := range c.samples {
		if !s.Asked && len(s.Unbalanced) == 0 {
			continue // it has looked at something else
		}
		always.checkThat(len(s.Unbalanced) == 0, Offender{}, "at %s: %s", s.At.Round(time.Second), clipList(s.Unbalanced))
	}

	replay := &Invariant{ID: "R", Says: "the whole history, published again in another order, changes nothing"}
	for n, e := range c.final.Effects {
		replay.checkThat(e == c.final.Effects[0], Offender{}, "after replay %d the effects are %s, and were %s", n, e, c.final.Effects[0])
	}
	return []*Invariant{always, drained, clean, replay}
}

// drainTime returns how long the drain took, or how long the run waited for it if it did not succeed.
func (c *run) drainTime() time.Duration {
	end := c.final.Drained
	if end == 0 {
		end = c.phaseStart(record.Replay)
	}
	return max(0, end-c.final.Healed)
}

func clipList(all []string) string {
	if len(all) > maxOffenders {
		all = append(slices.Clip(all[:maxOffenders]), fmt.Sprintf("and %d more", len(all)-maxOffenders))
	}
	return strings.Join(all, "; ")
}

// wasBusy reports whether a request was under way while e struck.
func (c *run) wasBusy(e record.Event) bool {
	if e.Open > 0 {
		return true
	}
	end := max(e.At, e.Until)
	begun := sort.Search(len(c.ops), func(i int) bool { return c.ops[i].Call > end })
	return begun > 0 && c.returned[begun-1] >= e.At
}

// isFaultEvent reports whether e is a fault.
func isFaultEvent(e record.Event) bool {
	return e.Fault != record.Phase && e.Fault != record.Start && e.Fault != record.Exit
}

// duringStorm reports whether at is in the storm.
func (c *run) duringStorm(at record.At) bool {
	return c.phaseStart(record.Storm) <= at && at < c.phaseStart(record.Heal)
}

// troubled reports whether the storm was on, or a fault struck, between two moments. The storm lasts until
// Healed, because processes are restarted until then.
func (c *run) troubled(from, to record.At) bool {
	if from < c.final.Healed && c.phaseStart(record.Storm) <= to {
		return true
	}
	return slices.ContainsFunc(c.events, func(e record.Event) bool {
		return isFaultEvent(e) && e.At <= to && from <= max(e.At, e.Until)
	})
}

// The balance must be queried in the storm once in askedEvery. In a long storm mostAsked queries are enough,
// because its large tables make them slow.
const (
	askedEvery = 10 * time.Second
	mostAsked  = 20
)

// askedSeldom returns a complaint if the balance was queried too seldom in the storm, otherwise "".
func (c *run) askedSeldom() string {
	n := 0
	for _, s := range c.samples {
		if s.Asked && c.duringStorm(s.At) {
			n++
		}
	}
	if want := min(max(1, int(c.run.Options.Storm/askedEvery)), mostAsked); n < want {
		return fmt.Sprintf("samples of the balance in the storm: %d, not %d", n, want)
	}
	return ""
}

// missingPoints lists the required strikes that have not happened. A fault without a hit has not happened.
func (c *run) missingPoints() (missing []string) {
	struck := map[string]bool{}
	for name := range c.points {
		struck[name] = true
	}
	for _, e := range c.events {
		if e.Err == "" && e.Hits > 0 && c.wasBusy(e) {
			struck[e.Fault] = true
		}
	}
	for _, name := range c.run.Required {
		if !struck[name] {
			missing = append(missing, name)
		}
	}
	for what, n := range map[string]int{
		"a COMMIT that has not reached the server": c.final.CommitsLost, "a COMMIT whose reply was lost": c.final.RepliesLost,
	} {
		if n == 0 {
			missing = append(missing, what)
		}
	}
	if len(c.final.Effects) < c.run.Options.Replays+1 {
		missing = append(missing, "a replay of the history")
	}
	if seldom := c.askedSeldom(); seldom != "" {
		missing = append(missing, seldom)
	}
	slices.Sort(missing)
	return missing
}
