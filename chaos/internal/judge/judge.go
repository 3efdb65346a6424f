// Package judge decides whether a run kept its promises. It reads only the run's directory (package record), so
// a better judge can judge an old run.
//
// The invariants I1 to I14 are those of the services' customers, operators and owners. R: publishing the whole
// history again changes nothing. L: keys and inbox rows are linearizable. S: secrets stay secret.
package judge

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// An Outcome is the result of a run.
type Outcome string

// The outcomes.
const (
	Green Outcome = "green" // all invariants hold, and every required strike has happened
	Red   Outcome = "red"   // an invariant does not hold
	Void  Outcome = "void"  // all invariants hold, but a required strike is missing or too rare
)

// A Verdict is the judgement of a run.
type Verdict struct {
	Run        record.Run   `json:"run"`
	Outcome    Outcome      `json:"outcome"`
	Invariants []*Invariant `json:"invariants"`
	Missing    []string     `json:"missing"` // required strikes that have not happened, and figures that miss their goals
	Figures    []Figure     `json:"figures"`
	Faults     []FaultCount `json:"faults"`
	Roles      []RoleCount  `json:"roles"`
	Ends       []EndCount   `json:"ends"`
	Points     []PointCount `json:"points"`
	Timelines  []Timeline   `json:"timelines"` // of the offenders
	Seconds    []Second     `json:"seconds"`
	Took       string       `json:"took"` // the time of each phase
}

// An Invariant is something that must be true.
type Invariant struct {
	ID        string     `json:"id"`
	Says      string     `json:"says"`
	Checked   int        `json:"checked"` // cases checked
	Count     int        `json:"count"`   // cases that contradict it
	Offenders []Offender `json:"offenders,omitempty"`
}

// An Offender is a case that contradicts an invariant.
type Offender struct {
	Saga string `json:"saga,omitempty"` // id of the order or trip; empty: none
	Key  string `json:"key,omitempty"`  // tenant/key, as the client knows it
	What string `json:"what"`
}

// maxOffenders is how many offenders of each invariant are kept.
const maxOffenders = 20

// addOffender counts a case that contradicts i.
func (i *Invariant) addOffender(o Offender, format string, args ...any) {
	i.Count++
	if len(i.Offenders) < maxOffenders {
		o.What = fmt.Sprintf(format, args...)
		i.Offenders = append(i.Offenders, o)
	}
}

// checkThat counts a checked case. Unless ok, the case contradicts i.
func (i *Invariant) checkThat(ok bool, o Offender, format string, args ...any) {
	i.Checked++
	if !ok {
		i.addOffender(o, format, args...)
	}
}

// A Figure is a number with its goal.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Goal  float64 `json:"goal"`
	Most  bool    `json:"most"` // the goal is an upper bound, otherwise a lower one
	OK    bool    `json:"ok"`
	Bound bool    `json:"bound"` // a missed goal makes the run void; false: the run was configured smaller
}

// A FaultCount says how often a fault struck.
type FaultCount struct {
	Fault  string `json:"fault"`
	Struck int    `json:"struck"`
	Idle   int    `json:"idle"`   // carried out without a hit
	Failed int    `json:"failed"` // could not be done
	Busy   int    `json:"busy"`   // carried out while requests were under way
	Hits   int    `json:"hits"`   // connections, sessions, commits, requests, messages or rows
}

// A RoleCount says how often the processes of a service were killed.
type RoleCount struct {
	Role                     string `json:"role"`
	Kills, Fuses, Stops, Own int    // by the harness, by a failpoint, by SIGTERM, on its own
}

// An EndCount says how sagas have ended.
type EndCount struct {
	Saga string         `json:"saga"`
	Kind string         `json:"kind"`
	N    int            `json:"n"`
	Ends map[string]int `json:"ends"`
}

// A PointCount says how often a failpoint has struck.
type PointCount struct {
	Point string `json:"point"` // name=action
	Hits  int    `json:"hits"`
}

// A Second is one sample.
type Second struct {
	At      record.At `json:"at"`
	Done    int       `json:"done"`
	Backlog int       `json:"backlog"`
	Ready   int       `json:"ready"`
}

// JudgeRun judges the run in dir. An error means that the directory is not readable, such as a file that is cut
// off.
func JudgeRun(dir string) (*Verdict, error) {
	c, err := openRun(dir)
	if err != nil {
		return nil, err
	}
	v := &Verdict{Run: c.run}
	if v.Invariants, err = c.invariants(); err != nil {
		return nil, err
	}
	c.fillFigures(v)
	v.Missing = slices.Concat(c.missingPoints(), missedNames(v.Figures))
	v.Outcome = Green
	switch {
	case slices.ContainsFunc(v.Invariants, func(i *Invariant) bool { return i.Count > 0 }):
		v.Outcome = Red
	case len(v.Missing) > 0:
		v.Outcome = Void
	}
	v.Timelines, err = c.timelines(v.Invariants)
	return v, err
}

// invariants judges all invariants.
func (c *run) invariants() ([]*Invariant, error) {
	secrets, err := c.judgeSecrets()
	return slices.Concat(
		c.judgeOrders(), c.judgeTrips(), c.judgeClients(), c.judgeMessages(), c.judgeSite(), c.judgeLinear(), secrets,
	), err
}

// tookText returns the duration of each phase as text.
func (c *run) tookText() string {
	var parts []string
	for i, p := range c.phases {
		end := c.end
		if i+1 < len(c.phases) {
			end = c.phases[i+1].At
		}
		parts = append(parts, fmt.Sprintf("%s %s", p.Args, (end-p.At).Round(100*time.Millisecond)))
	}
	return strings.Join(parts, ", ")
}
