package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/bench/internal/proctime"
	"github.com/sagamill/sagamill/bench/internal/target"
	"github.com/sagamill/sagamill/bench/internal/trips"
	"github.com/sagamill/sagamill/console"
	"github.com/sagamill/sagamill/operator"
)

const (
	pageGoal     = 200 * time.Millisecond
	consoleConns = 8
	databaseName = "main"
	rounds       = 3

	// warmUp is for how long the load runs before the pages are measured: a service that has just started makes its plans, and
	// reads its tables from the disk.
	warmUp = 5 * time.Second
)

// A visit is a page as a person opens it, or the first part that its stream sends.
type visit struct {
	name string
	path func(v *values) string
	live bool

	// after is the page that has opened the stream: the console still has what it has read for that.
	after string
}

// values are what the visits look for: keys and ids that the tables have.
type values struct {
	keys     map[string][]string // by kind of copy
	ids      []string            // of instances
	messages []string            // ids of messages of the log
	logged   []string            // keys of the log
	letters  []string            // ids
	prints   []string            // fingerprints of dead letters of a topic
	stored   []string            // numbers of messages of the log
	next     string              // the query of the second page of sagas
}

func pick(all []string) string { return url.QueryEscape(all[rand.IntN(len(all))]) }

func fixed(path string) func(*values) string { return func(*values) string { return path } }

func sagaOf(kind string) func(*values) string {
	return func(v *values) string {
		return "saga?database=" + databaseName + "&schema=" + schema + "&scope=" + scope + "&key=" + pick(v.keys[kind])
	}
}

// visits are all lists and look-ups of the console.
var visits = []visit{
	{name: "overview", path: fixed("")},
	{name: "overview, its last hour", path: fixed("live/"), live: true, after: "?"},
	{name: "sagas", path: fixed("sagas")},
	{name: "sagas, second page", path: func(v *values) string { return "sagas" + v.next }},
	{name: "sagas, live states", path: fixed("sagas?state=live")},
	{name: "sagas, stuck", path: fixed("sagas?state=stuck")},
	{name: "sagas, paused", path: fixed("sagas?state=paused")},
	{name: "sagas, compensated", path: fixed("sagas?state=compensated")},
	{name: "sagas, one key", path: func(v *values) string { return "sagas?key=" + pick(v.keys["done"]) }},
	{name: "sagas, one id", path: func(v *values) string { return "sagas?id=" + pick(v.ids) }},
	{name: "sagas, name and version", path: fixed("sagas?name=place-order&version=1")},
	{name: "sagas, a name of none", path: fixed("sagas?name=no-such-saga")},
	{name: "sagas, step", path: fixed("sagas?step=book-courier")},
	{name: "sagas, live for an hour", path: fixed("sagas?state=live&age=1h")},
	{name: "sagas, silent for 19 h", path: fixed("sagas?state=live&silent=19h")},
	{name: "sagas, count of all", path: fixed("live/sagas"), live: true},
	{name: "sagas, count of completed", path: fixed("live/sagas?state=completed"), live: true},
	{name: "sagas, count of stuck", path: fixed("live/sagas?state=stuck"), live: true},
	{name: "saga, in the log", path: func(v *values) string {
		return "saga?database=" + databaseName + "&schema=" + schema + "&scope=" + scope + "&key=" + pick(v.logged)
	}},
	{name: "saga, ended", path: sagaOf("done")},
	{name: "saga, stuck", path: sagaOf("stuck")},
	{name: "saga, stuck, live", path: func(v *values) string { return "live/" + sagaOf("stuck")(v) }, live: true},
	{name: "saga, by id", path: func(v *values) string { return "saga?id=" + pick(v.ids) }},
	{name: "dead letters, groups", path: fixed("dead")},
	{name: "dead letters, groups, live", path: fixed("live/dead"), live: true},
	{name: "dead letters, groups of a step", path: fixed("dead?side=inbox&step=take-payment")},
	{name: "dead letters, list", path: fixed("letters")},
	{name: "dead letters, count", path: fixed("live/letters"), live: true},
	{name: "dead letters, error text", path: fixed("letters?error=courier")},
	{name: "dead letters, rare error", path: fixed("letters?error=nothing+has+it")},
	{name: "dead letters, one key", path: func(v *values) string { return "letters?key=" + pick(v.keys["parked"]) }},
	{name: "dead letters, one group", path: func(v *values) string {
		return "letters?database=main&schema=shop&side=inbox&topic=shop.take-payment&fingerprint=" + pick(v.prints)
	}},
	{name: "dead letters, count of a group", path: func(v *values) string {
		return "live/letters?database=main&schema=shop&side=inbox&topic=shop.take-payment&fingerprint=" + pick(v.prints)
	}, live: true},
	{name: "retrying messages", path: fixed("letters?state=retrying")},
	{name: "dead letter", path: func(v *values) string { return "letter?database=main&schema=shop&side=inbox&id=" + pick(v.letters) }},
	{name: "outbox", path: fixed("outbox")},
	{name: "outbox, live", path: fixed("live/outbox"), live: true},
	{name: "outbox, refused", path: fixed("outbox?place=refused")},
	{name: "outbox, delayed", path: fixed("outbox?place=delayed")},
	{name: "outbox, dead", path: fixed("outbox?place=dead")},
	{name: "outbox, log", path: fixed("outbox?place=log")},
	{name: "outbox, log of a key", path: func(v *values) string { return "outbox?place=log&key=" + pick(v.logged) }},
	{name: "outbox, log of no key", path: fixed("outbox?place=log&key=none")},
	{name: "outbox, log of a topic", path: fixed("outbox?place=log&topic=shop.send-invoice")},
	{name: "message", path: func(v *values) string { return "message?in=main/shop&id=" + pick(v.stored) }},
	{name: "topology", path: fixed("topology")},
	{name: "keys, one key", path: func(v *values) string { return "requests?key=" + pick(v.keys["done"]) }},
	{name: "journal", path: fixed("journal")},
	{name: "journal of a person", path: fixed("journal?by=ann")},
	{name: "why, key in the log", path: func(v *values) string { return "why?q=" + pick(v.logged) }},
	{name: "why, key of an ended saga", path: func(v *values) string { return "why?q=" + pick(v.keys["done"]) }},
	{name: "why, id of a saga", path: func(v *values) string { return "why?q=" + pick(v.ids) }},
	{name: "why, id of a message", path: func(v *values) string { return "why?q=" + pick(v.messages) }},
	{name: "why, id of a saga that is gone", path: func(*values) string { return "why?q=" + uuid.Must(uuid.NewV7()).String() }},
	{name: "why, nothing", path: fixed("why?q=3f0e7d6c-0000-4000-8000-000000000000")},
}

// A site serves consoles. Its pool is that of all of them, and its statements are counted.
type site struct {
	pool    *pgxpool.Pool
	server  *httptest.Server
	count   trips.Counter
	current atomic.Pointer[console.Console]

	mu    sync.Mutex
	procs []int // the server's processes of the pool; their transactions start no others
}

func openSite(ctx context.Context, url string) (*site, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	s := &site{}
	config.MaxConns = consoleConns
	config.ConnConfig.AfterNetConnect = s.count.CountConn
	config.MinConns, config.MaxConnLifetime = consoleConns, time.Hour // so that all are there when processor time is read
	config.AfterConnect = func(_ context.Context, c *pgx.Conn) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.procs = append(s.procs, int(c.PgConn().PID()))
		return nil
	}
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.current.Load().ServeHTTP(w, r) }))
	return s, s.renew()
}

// used returns the processor time of the console, the browsers and their connections' processes at the server.
func (s *site) used() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return proctime.ReadProcesses(append(s.procs, os.Getpid())...)
}

func (s *site) close() {
	s.server.Close()
	s.pool.Close()
}

// renew replaces the console by one that has read nothing yet.
func (s *site) renew() error {
	c, err := console.New([]console.Database{{Name: databaseName, Pool: s.pool}}, &console.Options{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		s.current.Store(c)
	}
	return err
}

// errStatus is the answer to a visit that is not the page.
var errStatus = errors.New("the page is an error")

// open loads a page as a whole, or reads a stream until its first part has come.
func (s *site) open(ctx context.Context, path string, live bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.server.URL+"/"+path, nil)
	if err != nil {
		return err
	}
	response, err := s.server.Client().Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s is %s", errStatus, path, response.Status)
	}
	if !live {
		_, err := io.Copy(io.Discard, response.Body)
		return err
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "event: ") {
			return nil
		}
	}
	return errors.Join(errors.New("the stream has ended"), lines.Err())
}

// readValues reads what the visits look for.
func (b *bench) readValues(ctx context.Context) (v *values, err error) {
	v = &values{keys: map[string][]string{}}
	list := func(into *[]string, statement string) {
		if err != nil {
			return
		}
		err = b.pool.QueryRow(ctx, "SELECT array_agg(x) FROM ("+statement+") t (x)").Scan(into)
	}
	for kind, condition := range map[string]string{"done": "status = 'completed'", "stuck": "status = 'stuck'", "parked": "status = 'running' AND reason <> ''"} {
		var keys []string
		list(&keys, "SELECT key FROM shop.saga WHERE "+condition+" LIMIT 200")
		v.keys[kind] = keys
	}
	list(&v.ids, "SELECT id::text FROM shop.saga TABLESAMPLE SYSTEM (1) LIMIT 200")
	list(&v.messages, "SELECT message_id::text FROM shop.outbox TABLESAMPLE SYSTEM (5) LIMIT 200")
	list(&v.logged, "SELECT DISTINCT key FROM shop.outbox TABLESAMPLE SYSTEM (5) LIMIT 200")
	list(&v.stored, "SELECT id::text FROM shop.outbox TABLESAMPLE SYSTEM (5) LIMIT 200")
	list(&v.letters, "SELECT id::text FROM shop.parked WHERE state = 'dead' LIMIT 200")
	if err != nil {
		return nil, err
	}
	letters, err := operator.NewDeadLetters(b.pool, operator.Inbox, &operator.Options{Schema: schema})
	if err != nil {
		return nil, err
	}
	found, err := letters.Group(ctx, operator.Filter{Topic: doTopic("take-payment"), State: operator.StateDead}, 100)
	for _, g := range found.Groups {
		if g.Fingerprint != "" {
			v.prints = append(v.prints, g.Fingerprint)
		}
	}
	return v, err
}

var nextLink = regexp.MustCompile(`rel="next" href="[^"]*sagas(\?[^"]*)"`)

// findNext sets the query of the second page of sagas.
func (s *site) findNext(v *values) error {
	response, err := s.server.Client().Get(s.server.URL + "/sagas")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if found := nextLink.FindSubmatch(text); found != nil {
		v.next = html.UnescapeString(string(found[1]))
	}
	return err
}

// visitPages measures each page: every visit is to a console that has read nothing yet. The service has some load meanwhile.
func (b *bench) visitPages(ctx context.Context) (targets []target.Target, err error) {
	s, err := openSite(ctx, b.job.Database)
	if err != nil {
		return nil, err
	}
	defer s.close()
	v, err := b.readValues(ctx)
	if err == nil {
		err = s.findNext(v)
	}
	if err != nil {
		return nil, err
	}
	costs := map[string]float64{}
	for _, one := range visits {
		if strings.Contains(one.name, b.only) {
			costs[one.name] = b.measure(ctx, s, &one, v, b.visits).processor
		}
	}
	stop, err := b.startLoad(ctx, b.rate)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(warmUp):
	}
	fmt.Printf("\neach page %d times in each of %d rounds, without anything in memory, beside %d sagas a second; medians of the rounds\n", b.visits, rounds, b.rate)
	fmt.Printf(tableForm, "page", "p50", "p95", "processor", "statements", "")
	all := make([]*measured, len(visits))
	for range rounds {
		for i, one := range visits {
			if !strings.Contains(one.name, b.only) {
				continue
			}
			all[i] = b.measure(ctx, s, &one, v, b.visits).after(all[i])
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
	}
	worst := 0.0
	var problems []error
	for i, one := range visits {
		m := all[i]
		if m == nil {
			continue
		}
		m.processor = costs[one.name]
		printMeasured(m)
		if m.problem != nil {
			problems = append(problems, fmt.Errorf("%s: %w", one.name, m.problem))
		}
		worst = max(worst, m.percentile(0.95))
	}
	return []target.Target{{Name: "slowest-page-p95-ms", Value: worst, Goal: target.Milliseconds(pageGoal), AtMost: true}}, errors.Join(problems...)
}

// measure visits a page n times. Each time the console has read nothing yet, but for what the page before has shown.
func (b *bench) measure(ctx context.Context, s *site, one *visit, v *values, n int) *measured {
	prepare := func() error {
		if err := s.renew(); err != nil || one.after == "" {
			return err
		}
		return s.open(ctx, one.after, false)
	}
	return b.measureVisits(one.name, n, &s.count, prepare, func() error { return s.open(ctx, one.path(v), one.live) })
}

// measureVisits measures n visits after a first one, which prepares statements. It does not time prepare, which comes
// before each.
func (b *bench) measureVisits(name string, n int, count *trips.Counter, prepare, visit func() error) *measured {
	m := &measured{name: name, rounds: make([][]time.Duration, 1)}
	before, used := count.Statements.Load(), proctime.ReadUsage(b.job.Holder)
	for i := range n + 1 {
		if m.problem = prepare(); m.problem != nil {
			return m
		}
		begun := time.Now()
		if m.problem = visit(); m.problem != nil {
			return m
		}
		if i > 0 {
			m.rounds[0] = append(m.rounds[0], time.Since(begun))
		}
	}
	m.statements = float64(count.Statements.Load()-before) / float64(n+1)
	spent := proctime.ReadUsage(b.job.Holder).UsedSince(used)
	m.processor = target.Milliseconds(spent.Client+spent.Database) / float64(n+1)
	return m
}

// A measured is what the visits of a page took.
type measured struct {
	name       string
	rounds     [][]time.Duration // what each visit took
	statements float64           // of one visit
	processor  float64           // ms of the console, the browser and the database for one visit, without a load
	problem    error
}

// after returns m with the rounds of before, which may be nil, in front of its own.
func (m *measured) after(before *measured) *measured {
	if before != nil {
		m.rounds, m.problem = append(before.rounds, m.rounds...), cmp.Or(m.problem, before.problem)
	}
	return m
}

// percentile returns the median of the rounds' percentiles, in milliseconds: what slows the machine for a moment is in one
// round.
func (m *measured) percentile(p float64) float64 {
	var all []float64
	for _, took := range m.rounds {
		all = append(all, target.Milliseconds(target.Percentile(took, p)))
	}
	return target.MedianOf(all)
}

func (m *measured) verdict() string {
	switch {
	case m.problem != nil:
		return m.problem.Error()
	case m.percentile(0.95) > target.Milliseconds(pageGoal):
		return "short"
	}
	return "ok"
}

const tableForm = "%-32s %9s %9s %11s %10s  %s\n"

func printMeasured(m *measured) {
	fmt.Printf(tableForm, m.name, fmt.Sprintf("%.1f ms", m.percentile(0.5)), fmt.Sprintf("%.1f ms", m.percentile(0.95)),
		fmt.Sprintf("%.1f ms", m.processor), fmt.Sprintf("%.1f", m.statements), m.verdict())
}
