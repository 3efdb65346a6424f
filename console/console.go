package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/management"
	"github.com/sagamill/sagamill/operator"
)

// A Database is a database that a console shows.
type Database struct {
	Name string        // in pages and URLs: letters, digits, dots, underscores and dashes
	Pool *pgxpool.Pool // for pages and previews: a role that is a member of sagamill_reader is enough

	// Operator is for changes, on the same server: a role that is a member of sagamill_operator is enough. Default: Pool,
	// whose role must then be a member of both.
	Operator *pgxpool.Pool

	// Schemas are the schemas to show. Default: each that has tables of sagamill when a page is read.
	Schemas []string
}

// An Actor is the name of a person, as the journal stores it.
type Actor string

// A Role says what a person may do.
type Role int

// The roles. Each includes those before it.
const (
	RoleViewer   Role = iota // looks
	RoleOperator             // also pauses, resumes, retries, redrives and cancels
	RoleAdmin                // also overrides results, discards, and edits dead letters
)

// String returns the name of the role.
func (r Role) String() string {
	return map[Role]string{RoleViewer: "viewer", RoleOperator: "operator", RoleAdmin: "admin"}[r]
}

// ErrNotAuthorized is for Authorize functions: the request is of nobody who may see the console. The console answers
// 403.
var ErrNotAuthorized = errors.New("console: not authorized")

// Options configure a [Console]. A nil *Options means the defaults.
type Options struct {
	// Authorize returns the person who sent a request, and the role of this person. An error refuses the request with
	// 403. Authorize is called for each request besides those for static files. Default: everybody is a viewer, and each
	// page says that the console is read-only.
	Authorize func(*http.Request) (Actor, Role, error)

	// Redact returns the text that pages and exports show in place of a payload, a header, the state of a saga, an error,
	// a stack, or a text that a person has written. It gets each of them whole: a payload of more than 1 MiB is not shown
	// then. Default: the whole content is shown. A search for a part of an error compares what is stored, whatever Redact
	// returns.
	Redact func(Content) []byte

	// TraceURL returns the http or https URL of a trace; pages about sagas and messages link to this URL. The id has 32
	// hexadecimal digits. Default: no links.
	TraceURL func(traceID string) string

	// MaxContent is the largest number of bytes that a page shows of a payload, or of the state of a saga. Default: 64
	// KiB.
	MaxContent int

	// ReadTimeout limits each SQL statement of a page; all statements of a page together may take four times
	// ReadTimeout. A page that takes longer says how to narrow the search. Default: 5 s.
	ReadTimeout time.Duration

	// MaxConns is how many connections of one pool the console uses at the same time; if a service uses the same pool,
	// the other connections stay free for this service. Half of the console's connections are for pages, which wait for
	// each other, and half for changes that run, one each. A pool of the console's own, with a role that only reads,
	// separates it better. Default: 4, and at least 2.
	MaxConns int

	// Secret is the key with which the console signs the tokens of forms, and the URLs of pages that show the progress of
	// a change. Processes behind one address need the same one, of at least 32 bytes: then each shows what is left of a
	// change that another one runs. Default: a random secret; after a restart, forms that were open are invalid.
	Secret []byte

	// Topology returns the descriptions that services serve at /topology, as a sequence of JSON objects or JSON arrays;
	// the topology page shows these descriptions. Default: the topology page shows only what the database tables
	// contain.
	Topology func(context.Context) ([]byte, error)

	// Management is the access to RabbitMQ's management API; from this API the console reads how many messages the
	// queues have. Default: no queues are shown.
	Management *Management

	// Logger gets the errors of the console, and each change that a person makes. Default: slog.Default().
	Logger *slog.Logger
}

const (
	defaultMaxContent  = 64 << 10
	defaultReadTimeout = 5 * time.Second
	defaultMaxConns    = 4
	minSecret          = 32

	// pageReads is how many times ReadTimeout all statements of a page may take.
	pageReads = 4
)

// A Console is an http.Handler for the pages. Mount it at any path with [http.StripPrefix]; the path ends in a slash.
// Any number of goroutines may use it.
type Console struct {
	databases []Database
	opts      Options
	pages     map[string]*page // by path
	menu      []*page
	errorPage *page
	assets    assetSet
	origin    *http.CrossOriginProtection
	signer    signer
	overviews memo[[]operator.SchemaStatus]
	paces     memo[operator.Pace]
	processes memo[[]operator.Process]
	counts    memo[int]
	schemas   memo[[]string]
	groups    memo[operator.LetterGroups]

	flows       memo[operator.Flow]
	waitingKeys memo[[]operator.WaitingKey]
	topics      memo[[]operator.TopicUse]
	described   memo[[]describedService]
	queues      memo[[]management.Queue]

	explanations memo[*operator.Explanation]
	runs         *runSet
	live         chan struct{} // a slot for each open stream
	readers      chan struct{} // a slot for each page, stream or export that reads at this moment
}

var validName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,63}$`)

// New returns a console of databases. It does no I/O and starts nothing. Its errors name a database without a pool, a
// name that is not plain or used twice, and options that make no sense.
func New(databases []Database, opts *Options) (*Console, error) {
	if opts == nil {
		opts = &Options{}
	}
	o := *opts
	if err := o.fillDefaults(); err != nil {
		return nil, err
	}
	if err := checkDatabases(databases); err != nil {
		return nil, err
	}
	assets, err := loadAssets()
	if err != nil {
		return nil, err
	}
	c := &Console{databases: databases, opts: o, assets: assets, origin: http.NewCrossOriginProtection(), signer: signer{o.Secret},
		explanations: memo[*operator.Explanation]{limit: maxExplanations}, runs: newRunSet(), live: make(chan struct{}, maxStreams),
		readers: make(chan struct{}, o.MaxConns-o.activeRuns())}
	if c.pages, err = c.buildPages(); err != nil {
		return nil, err
	}
	return c, nil
}

func (o *Options) fillDefaults() error {
	switch {
	case o.MaxContent < 0:
		return errors.New("console: option MaxContent is negative")
	case o.ReadTimeout < 0:
		return errors.New("console: option ReadTimeout is negative")
	case o.MaxConns < 0 || o.MaxConns == 1:
		return errors.New("console: option MaxConns is below 2")
	case o.Secret != nil && len(o.Secret) < minSecret:
		return fmt.Errorf("console: option Secret has %d bytes, fewer than %d", len(o.Secret), minSecret)
	}
	if err := o.Management.check(); err != nil {
		return err
	}
	o.MaxContent = cmp.Or(o.MaxContent, defaultMaxContent)
	o.MaxConns = cmp.Or(o.MaxConns, defaultMaxConns)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, defaultReadTimeout)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Secret == nil {
		o.Secret = make([]byte, minSecret)
		_, _ = rand.Read(o.Secret) // never fails
	}
	return nil
}

// activeRuns is how many changes run at once.
func (o *Options) activeRuns() int { return o.MaxConns / 2 }

func checkDatabases(databases []Database) error {
	if len(databases) == 0 {
		return errors.New("console: New needs a database")
	}
	seen := map[string]bool{}
	for _, d := range databases {
		switch {
		case !validName.MatchString(d.Name):
			return fmt.Errorf("console: database name %.70q must match %s", d.Name, validName)
		case seen[d.Name]:
			return fmt.Errorf("console: two databases have the name %s", d.Name)
		case d.Pool == nil:
			return fmt.Errorf("console: database %s has no pool", d.Name)
		}
		for _, schema := range d.Schemas {
			if _, err := operator.NewInstances(d.Pool, &operator.Options{Schema: schema}); err != nil {
				return fmt.Errorf("console: database %s: %w", d.Name, err)
			}
		}
		seen[d.Name] = true
	}
	return nil
}

// Shutdown stops the changes that run, each between two objects, and waits until they have ended. What they have done
// is committed and in the journal. Its error is that of ctx. No change starts afterwards.
func (c *Console) Shutdown(ctx context.Context) error { return c.runs.stopAll(ctx) }
