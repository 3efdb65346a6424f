package sagamill

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/cloudevents"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/telemetry"
)

// A Config describes a service. Name and a database are required.
type Config struct {
	// Name is a part of the names of the service's queues: [a-z][a-z0-9-]{0,30}. All processes of a service have
	// one name. A service that changes its name gets new, empty queues. Required.
	Name string
	// Prefix begins the names of all exchanges and queues, such as "shop.". Services that exchange messages have
	// the same one. Default: none.
	Prefix string
	Schema string // PostgreSQL schema of the service's tables; default: Name, with _ for -

	DatabaseURL string        // URL or connection string of PostgreSQL; the Service opens a pool and closes it; required without Database
	Database    *pgxpool.Pool // in place of DatabaseURL: a pool that stays open; default: none

	BrokerURL  string             // URL of RabbitMQ, or several of one cluster, separated by commas; default: a broker inside of this process (package inproc)
	Publisher  message.Publisher  // in place of BrokerURL, with Subscriber: any publisher of watermill; the Service does not close it; default: none
	Subscriber message.Subscriber // in place of BrokerURL, with Publisher: any subscriber of watermill; default: none

	Steps []consumer.Step // what the service does for sagas; default: none
	Sagas []saga.Plan     // definitions of sagas that the service orchestrates; default: none

	// Codecs, such as protobuf.Codec, read bodies that are not JSON. They are for Steps that set no Codecs themselves.
	// Default: none.
	Codecs []outbox.Codec

	// Emits lists what the service sends besides commands of Sagas and what Steps list in their own Emits: messages of HTTP
	// handlers, of local steps and of saga.Definition.OnEnd. It is for [Service.Topology] alone. Default: none.
	Emits []outbox.Output

	// CloudEvents makes the service send CloudEvents, and read CloudEvents of others. Default: it does neither.
	CloudEvents *cloudevents.Options

	// Migrations are the service's own tables: files named 001_name.sql and so on, in the root or in its only
	// directory. {{.schema}} stands for Schema. Default: none.
	Migrations fs.FS
	// MigrationsURL is a URL of the database that leads past any pooler, as migrations need a session. Default:
	// DatabaseURL, or the one that Database was made from.
	MigrationsURL string
	// NoMigrations makes Run only check that the schema is at the newest version. It returns an error if not.
	// Default: Run applies migrations; of several processes one does, and the others wait.
	NoMigrations bool

	Requests int // requests behind Idempotent that run at once, each on one connection; default: 16

	// Telemetry says where metrics and traces go. Default: metrics to /metrics of [Service.Handler], traces to
	// OpenTelemetry's global provider.
	Telemetry *telemetry.Options
	Logger    *slog.Logger // gets what all parts log; default: slog.Default()

	// The options of the parts. The Service sets Schema, Wake, Tracer, Observer and Logger.

	Consumer     consumer.Options           // options of the consumer that runs Steps
	Orchestrator saga.Options               // options of the orchestrator of Sagas; its Consumer is for replies
	Relay        outbox.RelayOptions        // options of the relay that publishes the outbox
	Idempotency  idemkey.Options            // options of the middleware behind Idempotent
	Keys         idempg.Options             // options of the store of idempotency keys
	Queues       rabbitmq.ConfigOptions     // options of RabbitMQ's queues; its Prefix is Config.Prefix
	Publishing   rabbitmq.PublisherOptions  // options of the publisher to RabbitMQ
	Subscription rabbitmq.SubscriberOptions // options of the subscriptions to RabbitMQ
}

var serviceName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

// complete fills in defaults and returns an error that names each field that is wrong.
func (c *Config) complete() error {
	c.Schema = cmp.Or(c.Schema, strings.ReplaceAll(c.Name, "-", "_"))
	c.Requests = cmp.Or(c.Requests, 16)
	c.Logger = guard.Logger(cmp.Or(c.Logger, slog.Default()))
	var faults []error
	wrong := func(broken bool, format string, args ...any) {
		if broken {
			faults = append(faults, fmt.Errorf("Config."+format, args...))
		}
	}
	wrong(!serviceName.MatchString(c.Name), "Name: %q is not of the form [a-z][a-z0-9-]{0,30}", c.Name)
	if err := sqlschema.Check(c.Schema); err != nil && c.Schema != "" {
		wrong(true, "Schema: %w", err)
	}
	wrong(c.DatabaseURL == "" && c.Database == nil, "DatabaseURL: it is missing; give a URL of PostgreSQL, or a pool as Database")
	wrong(c.DatabaseURL != "" && c.Database != nil, "Database: a pool and DatabaseURL exclude each other")
	wrong((c.Publisher == nil) != (c.Subscriber == nil), "Publisher: Publisher and Subscriber need each other")
	wrong(c.BrokerURL != "" && c.Publisher != nil, "BrokerURL: it excludes Publisher and Subscriber")
	wrong(c.BrokerURL == "" && c.Prefix != "", "Prefix: it is for RabbitMQ, and needs BrokerURL")
	wrong(c.Requests < 1 || c.Requests > 1024, "Requests: %d is not between 1 and 1024", c.Requests)
	wrong(slices.Contains(c.Codecs, nil), "Codecs: one is nil")
	wrong(c.CloudEvents != nil && (c.Consumer.Open != nil || c.Orchestrator.Consumer.Open != nil), "CloudEvents: it sets the option Open of Consumer and Orchestrator; leave Open nil there")
	wrong(slices.ContainsFunc(c.Emits, func(o outbox.Output) bool { return o.Topic == "" }), "Emits: one has no Topic")
	c.Steps = slices.Clone(c.Steps)
	for i := range c.Steps {
		for _, in := range []*consumer.Input{&c.Steps[i].Action, &c.Steps[i].Compensation} {
			if in.Codecs == nil {
				in.Codecs = c.Codecs
			}
		}
	}
	if err := c.checkMigrations(); err != nil {
		wrong(true, "Migrations: %w", err)
	}
	for part, set := range map[string]bool{
		"Consumer":     c.Consumer.Schema != "" || c.Consumer.Observer != nil || c.Consumer.Wake != nil || c.Consumer.Logger != nil,
		"Orchestrator": c.Orchestrator.Schema != "" || c.Orchestrator.Wake != nil || c.Orchestrator.Logger != nil || c.Orchestrator.Consumer.Observer != nil,
		"Relay":        c.Relay.Schema != "" || c.Relay.Observer != nil || c.Relay.Logger != nil,
		"Idempotency":  c.Idempotency.Observer != nil || c.Idempotency.Logger != nil,
		"Keys":         c.Keys.Schema != "" || c.Keys.MaxInFlight != 0,
		"Queues":       c.Queues.Prefix != "",
		"Publishing":   c.Publishing.Logger != nil,
		"Subscription": c.Subscription.Logger != nil,
	} {
		wrong(set, "%s: the Service sets Prefix, Schema, MaxInFlight, Wake, Observer and Logger itself", part)
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(faults...)
}

// checkMigrations finds the directory of the migrations.
func (c *Config) checkMigrations() error {
	if c.Migrations == nil {
		return nil
	}
	for {
		entries, err := fs.ReadDir(c.Migrations, ".")
		if err != nil {
			return err
		}
		if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), ".sql") }) {
			return nil
		}
		if len(entries) != 1 || !entries[0].IsDir() {
			return errors.New("neither the root nor its only directory has files named 001_name.sql")
		}
		if c.Migrations, err = fs.Sub(c.Migrations, entries[0].Name()); err != nil {
			return err
		}
	}
}

// A poolUse is one user of the pool's connections.
type poolUse struct {
	count int
	by    string
}

// poolUses returns who uses the pool, and how many connections at once at most.
func (s *Service) poolUses() (uses []poolUse, total int) {
	const relay, spare = 2, 2
	uses = []poolUse{{relay, "relay"}, {s.config.Requests, "Requests"}, {spare, "health checks and sweepers"}}
	if s.hasSteps() {
		uses = append(uses, poolUse{consumerConnections(&s.config.Consumer), "Consumer"})
	}
	if s.hasSagas() {
		o := &s.config.Orchestrator
		uses = append(uses, poolUse{consumerConnections(&o.Consumer) + cmp.Or(o.TimerWorkers, 4), "Orchestrator"})
	}
	for _, use := range uses {
		total += use.count
	}
	return uses, total
}

// consumerConnections is the number of transactions that a consumer has open at once: lanes and workers for parked
// messages.
func consumerConnections(o *consumer.Options) int {
	return cmp.Or(o.Lanes, 8) + cmp.Or(o.ParkedWorkers, 4)
}

// checkPool returns an error if the pool is smaller than what uses it.
func (s *Service) checkPool(maxConns int32) error {
	uses, total := s.poolUses()
	if int(maxConns) >= total {
		return nil
	}
	parts := make([]string, len(uses))
	for i, use := range uses {
		parts[i] = fmt.Sprintf("%d for %s", use.count, use.by)
	}
	return fmt.Errorf("Config.Database: the pool has %d connections, and the service uses up to %d: %s; raise pool_max_conns, or lower Requests, Consumer.Lanes or ParkedWorkers",
		maxConns, total, strings.Join(parts, ", "))
}
