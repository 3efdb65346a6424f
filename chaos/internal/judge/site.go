package judge

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// drainWithin is the time in which everything must be done once nothing strikes
// any more.
const drainWithin = 30 * time.Second

// What the Args of an Exit begin with, and what those of a process contain that did
// not end when it was told to.
const (
	byItself = "by itself" // nobody has caused it
	byFuse   = "by its fuse"
	killed   = "killed"
	hung     = "had to be killed"
)

func (c *run) judgeSite() []*Invariant {
	drained := &Invariant{ID: "I13", Says: fmt.Sprintf("everything is done within %s of the end of all faults", drainWithin)}
	drained.check(c.final.Drained > 0, Offender{}, "left: %s", clip(c.final.Left))
	drained.check(c.drain() <= drainWithin, Offender{}, "it took %s", c.drain().Round(time.Millisecond))

	clean := &Invariant{ID: "I14", Says: "every process ends when told to, none by itself, and nothing of them is left in the servers"}
	for _, s := range c.final.Stopped {
		clean.check(s.Code == 0, Offender{Key: s.Name}, "%s ended with code %d after %s", s.Name, s.Code, s.Took.Round(time.Millisecond))
	}
	clean.check(len(c.final.Stopped) > 0, Offender{}, "no process was told to stop")
	for _, e := range c.events {
		if e.Fault == record.Exit {
			clean.check(!strings.HasPrefix(e.Args, byItself) && !strings.Contains(e.Args, hung), Offender{Key: e.Target}, "at %s %s ended %s", e.At.Round(time.Millisecond), e.Target, e.Args)
		}
	}
	clean.check(c.final.Connections == 0 && c.final.IdleInTx == 0 && c.final.Locks == 0 && c.final.BrokerConnections == 0, Offender{},
		"%d connections, %d idle in transaction, %d locks, %d connections to the broker", c.final.Connections, c.final.IdleInTx, c.final.Locks, c.final.BrokerConnections)

	always := &Invariant{ID: "I3", Says: "money and stock are conserved at every moment of the storm"}
	for _, s := range c.samples {
		always.check(len(s.Unbalanced) == 0, Offender{}, "at %s: %s", s.At.Round(time.Second), clip(s.Unbalanced))
	}

	replay := &Invariant{ID: "R", Says: "the whole history, published again in another order, changes nothing"}
	for n, e := range c.final.Effects {
		replay.check(e == c.final.Effects[0], Offender{}, "after replay %d the effects are %s, and were %s", n, e, c.final.Effects[0])
	}
	return []*Invariant{always, drained, clean, replay}
}

// drain is how long it took until nothing was left to be done.
func (c *run) drain() time.Duration { return max(0, c.final.Drained-c.final.Healed) }

func clip(all []string) string {
	if len(all) > maxOffenders {
		all = append(slices.Clip(all[:maxOffenders]), fmt.Sprintf("and %d more", len(all)-maxOffenders))
	}
	return strings.Join(all, "; ")
}

// busy reports whether a request was under way while e struck.
func (c *run) busy(e record.Event) bool {
	if e.Open > 0 {
		return true
	}
	end := max(e.At, e.Until)
	begun := sort.Search(len(c.ops), func(i int) bool { return c.ops[i].Call > end })
	return begun > 0 && c.returned[begun-1] >= e.At
}

// missing lists what was to strike and has not.
func (c *run) missing() (missing []string) {
	struck := map[string]bool{}
	for name := range c.points {
		struck[name] = true
	}
	for _, e := range c.events {
		if e.Err == "" && c.busy(e) {
			struck[e.Fault] = true
		}
	}
	for _, name := range c.run.Required {
		if !struck[name] {
			missing = append(missing, name)
		}
	}
	for what, n := range map[string]int{
		"a COMMIT that has not reached the server": c.final.CommitsLost, "a COMMIT whose reply was lost": c.final.RepliesLost, "a sample": len(c.samples),
	} {
		if n == 0 {
			missing = append(missing, what)
		}
	}
	if len(c.final.Effects) < c.run.Options.Replays+1 {
		missing = append(missing, "a replay of the history")
	}
	slices.Sort(missing)
	return missing
}
