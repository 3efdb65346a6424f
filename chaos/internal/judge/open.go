package judge

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// A run is what a directory says, in memory.
type run struct {
	dir      string
	run      record.Run
	schedule []record.Planned
	events   []record.Event
	phases   []record.Event
	end      record.At   // of the last event
	ops      []record.Op // in the order of their calls
	returned []record.At // when the last of the ops up to each has returned
	injected []record.Injection
	samples  []record.Sample
	messages []record.Message
	final    record.Final
	points   map[string]int // name=action: hits

	changes map[string][]change // by saga, in their order
	strays  []change            // that belong to no saga

	orders []*order
	trips  []*trip
	byID   map[string]*placed // what clients know, by the id that they were told
	keys   map[key]*placed

	rows tables
}

// A change is a [record.Change] in less memory: there are millions.
type change struct {
	seq              int64
	at               int64 // nanoseconds since the run began
	tx               uint64
	table, op, state string // of few values, shared
	key, what        string
}

// A key is what a client's request is about: within a saga's name, tenant and
// idempotency key.
type key struct{ saga, tenant, key string }

func (k key) String() string { return k.tenant + "/" + k.key }

// openRun reads everything in dir.
func openRun(dir string) (*run, error) {
	c := &run{dir: dir, points: map[string]int{}, changes: map[string][]change{}}
	if err := record.ReadJSON(dir, record.RunFile, &c.run); err != nil {
		return nil, fmt.Errorf("it is not the directory of a run: %w", err)
	}
	if err := record.ReadJSON(dir, record.FinalFile, &c.final); err != nil {
		return nil, fmt.Errorf("the run has not come to its end: %w", err)
	}
	if err := errors.Join(
		readRecords(dir, record.ScheduleFile, &c.schedule),
		readRecords(dir, record.EventsFile, &c.events),
		readRecords(dir, record.ClientFile, &c.ops),
		readRecords(dir, record.InjectedFile, &c.injected),
		readRecords(dir, record.SamplesFile, &c.samples),
		readRecords(dir, record.OutboxFile, &c.messages),
		c.readPoints(), c.readChanges(), c.rows.readTables(dir),
	); err != nil {
		return nil, err
	}
	for _, e := range c.events {
		if c.end = max(c.end, e.At, e.Until); e.Fault == record.Phase {
			c.phases = append(c.phases, e)
		}
	}
	c.gatherRequests()
	return c, nil
}

func readRecords[T any](dir, name string, into *[]T) (err error) {
	*into, err = record.ReadAll[T](dir, name)
	return err
}

// readPoints counts the points that have triggered. There may be none.
func (c *run) readPoints() error {
	file, err := os.Open(filepath.Join(c.dir, record.FailpointsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		c.points[strings.TrimSpace(lines.Text())]++
	}
	return lines.Err()
}

func (c *run) readChanges() error {
	shared := map[string]string{}
	share := func(s string) string {
		if known, ok := shared[s]; ok {
			return known
		}
		shared[s] = s
		return s
	}
	for r, err := range record.ReadFile[record.Change](c.dir, record.ChangesFile) {
		if err != nil {
			return err
		}
		ch := change{
			seq: r.Seq, at: int64(r.At.Sub(c.run.Began)), tx: r.Tx,
			table: share(r.Table), op: share(r.Op), state: share(r.State), key: r.Key, what: r.What,
		}
		if r.Saga == "" {
			c.strays = append(c.strays, ch)
			continue
		}
		id := share(r.Saga)
		c.changes[id] = append(c.changes[id], ch)
	}
	for _, all := range c.changes {
		slices.SortFunc(all, func(a, b change) int { return int(a.seq - b.seq) })
	}
	return nil
}

// phaseStart returns when a phase began, or the end of the run.
func (c *run) phaseStart(name string) record.At {
	for _, p := range c.phases {
		if p.Args == name {
			return p.At
		}
	}
	return c.end
}

// sinceBegin is the run's time of a moment by another clock of the machine.
func (c *run) sinceBegin(t time.Time) record.At { return t.Sub(c.run.Began) }
