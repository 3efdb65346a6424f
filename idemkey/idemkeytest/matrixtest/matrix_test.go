//go:build failpoints

package matrixtest

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// An outcome is all that can be seen of one cell.
type outcome struct {
	first  string // what the first client sees
	left   int    // business rows after that
	record string // and the record; empty: it cannot be seen
	soon   string // what a retry gets while the lease runs or the first is held up; empty: there is no such time
	retry  string // what it gets then
	runs   int    // of the handler, in the end
	rows   int    // business rows, in the end
}

// A row is a point where something goes wrong.
type row struct {
	point string
	set   func(*settings) // what the servers need
	fault func(*cell)     // provokes it, and fills in what the first client sees
	want  map[string]outcome
	none  map[string]string // why a column has no such point
}

// A cell is one row on one store.
type cell struct {
	*testing.T
	settings
	via    struct{ Postgres, Redis string } // where the first process finds its stores
	direct *site                            // the store's tables, as the test sees them
	first  *process                         // that the fault is for
	local  *instance                        // that nothing is wrong with
	key    string
	do     string // what a retry asks of its handler
	got    outcome
	kept   string // the body that a replay must have, where it is known
}

// One row for each point of a request, one column for each store: what is
// durable, what the client sees, what its retry gets and how often the handler
// and its effect came about.
func TestFailureMatrix(t *testing.T) {
	t.Parallel()
	base := newSettings(t)
	for i, r := range slices.Concat(deaths, stalls, outages, endings) {
		t.Run(r.point, func(t *testing.T) {
			t.Parallel()
			for name := range r.want {
				if columnOf(name) == nil || r.none[name] != "" {
					t.Errorf("no column %q, or one that has no such point", name)
				}
			}
			for _, col := range columns {
				if r.none[col.name] != "" {
					continue
				}
				t.Run(col.name, func(t *testing.T) {
					t.Parallel()
					want, ok := r.want[col.name]
					if !ok {
						t.Fatal("the row does not say what this store promises")
					}
					c := newCell(t, base, &col, fmt.Sprintf("%s-%d", col.name, i), r.set)
					if got := c.run(r.fault); got != want {
						t.Errorf("got  %+v\nwant %+v", got, want)
					}
				})
			}
		})
	}
}

func newCell(t *testing.T, base settings, col *column, key string, set func(*settings)) *cell {
	t.Helper()
	c := &cell{T: t, settings: base.of(t, col), key: key}
	if set != nil {
		set(&c.settings)
	}
	seen := c.settings
	seen.Name = "test" // its own statements are not those of a server
	c.direct = newSite(t, seen)
	return c
}

// run provokes the fault, looks, and retries.
func (c *cell) run(fault func(*cell)) outcome {
	fault(c)
	c.settle()
	c.got.left, c.got.record = len(c.rows()), c.state()
	if c.got.record == inProgress || c.got.record == absent && c.locked() {
		c.got.soon = c.retry().text
		c.lapse()
	}
	retry := c.retry()
	c.got.retry = retry.text
	c.again(retry)
	c.first.kill()
	c.got.runs = int(c.first.runs.Load())
	if c.local != nil {
		c.got.runs += int(c.local.runs.Load())
	}
	c.got.rows = len(c.rows())
	return c.got
}

// locked reports whether the lock in front of the records is taken.
func (c *cell) locked() bool {
	c.Helper()
	if c.Column != hybrid {
		return false
	}
	n, err := c.direct.redis.Exists(c.Context(), c.direct.hash(c.key)).Result()
	if err != nil {
		c.Fatalf("look for the lock: %v", err)
	}
	return n == 1
}

// again checks that the answer to the retry is final, and its response the one
// whose business row there is.
func (c *cell) again(retry answer) {
	c.Helper()
	last, want := c.retry(), retry.text
	if retry.status < 400 && !strings.HasSuffix(want, "replay") || want == "400" {
		want += " replay"
	}
	if last.text != want {
		c.Errorf("after %q came %q, want %q", retry.text, last.text, want)
	}
	if strings.HasSuffix(last.text, "replay") && last.body != retry.body {
		c.Errorf("replay = %q, want %q", last.body, retry.body)
	}
	if strings.HasSuffix(retry.text, "replay") && c.kept != "" && retry.body != c.kept {
		c.Errorf("replay = %q, want %q", retry.body, c.kept)
	}
	if last.text == "201 replay" && !slices.Contains(c.rows(), last.body) {
		c.Errorf("the response is that of run %q, which has no business row", last.body)
	}
}

// serve starts the process that the first request goes to.
func (c *cell) serve(fault string) *process {
	c.Helper()
	s := c.settings
	s.Postgres, s.Redis = c.via.Postgres, c.via.Redis
	c.first = start(c.T, s, fault)
	return c.first
}

// other returns where a retry goes: a server that nothing is wrong with.
func (c *cell) other() *instance {
	c.Helper()
	if c.Column == memory && !c.first.dead() {
		return &c.first.instance // nobody else knows of the request
	}
	if c.local == nil {
		c.local = &instance{}
		h, err := c.direct.handler(c.local.count)
		if err != nil {
			c.Fatal(err)
		}
		server := httptest.NewServer(h)
		c.Cleanup(server.Close)
		c.local.url = server.URL
	}
	return c.local
}

// send sends the request to i.
func (c *cell) send(i *instance, do string) answer {
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	return post(ctx, i.url, c.key, strings.NewReader("order"), doHeader, do)
}

// begin sends the request to p and returns where its answer will come.
func (c *cell) begin(p *process, do string) <-chan answer {
	answered := make(chan answer, 1)
	go func() { answered <- c.send(&p.instance, do) }() // ends with the request, which ends with the process
	return answered
}

func (c *cell) retry() answer {
	c.Helper()
	return c.send(c.other(), c.do)
}

// leave lets the handler of the first process go on.
func (c *cell) leave() {
	c.Helper()
	if a := post(c.Context(), c.first.url+leavePath, "", strings.NewReader("")); a.text != "200" {
		c.Errorf("leave: %s", a.text)
	}
}

// settle waits until no server has a transaction open: a dead one's ends when
// Postgres has noticed.
func (c *cell) settle() {
	c.Helper()
	c.direct.settle(c.T, c.Name)
}

func (c *cell) until(what string, done func() (bool, error)) {
	c.Helper()
	until(c.T, what, done)
}

func (c *cell) rows() []string {
	c.Helper()
	runs, err := c.direct.rows(c.Context(), c.key)
	if err != nil {
		c.Fatalf("read business rows: %v", err)
	}
	return runs
}

func (c *cell) state() string {
	c.Helper()
	state, err := c.direct.column.state(c.Context(), c.direct, c.key)
	if err != nil {
		c.Fatalf("read record: %v", err)
	}
	return state
}

func (c *cell) lapse() {
	c.Helper()
	if err := c.direct.column.lapse(c.Context(), c.direct, c.key); err != nil {
		c.Fatalf("let the lease end: %v", err)
	}
}

func (c *cell) expire() {
	c.Helper()
	if err := c.direct.column.expire(c.Context(), c.direct, c.key); err != nil {
		c.Fatalf("let the record expire: %v", err)
	}
}
