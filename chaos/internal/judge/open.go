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

// A run is the content of a run's directory, in memory.
type run struct {
	dir      string
	run      record.Run
	schedule []record.Planned
	events   []record.Event
	phases   []record.Event
	end      record.At   // of the last event
	ops      []record.Op // ordered by their calls
	returned []record.At // for each op, the latest return of it and all earlier ones
	injected []record.Injection
	samples  []record.Sample
	messages []record.Message
	final    record.Final
	points   map[string]int // name=action: hits

	changes map[string][]change // by saga, in their order
	strays  []change            // changes of no saga

	orders []*order
	trips  []*trip
	byID   map[string]*placed // the clients' knowledge of a saga, by the id in their answers
	keys   map[key]*placed

	rows tables
}

// A change is a [record.Change] in less memory: a run has millions.
type change struct {
	seq              int64
	at               int64 // nanoseconds since the run began
	tx               uint64
	table, op, state string // shared strings of few values
	key, what        string
}

// A key identifies a client's request: the kind of saga, the tenant and the idempotency key.
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

// readPoints counts the failpoints that have triggered. The file may be absent.
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

// sinceBegin converts a wall-clock time to the run's time.
func (c *run) sinceBegin(t time.Time) record.At { return t.Sub(c.run.Began) }
