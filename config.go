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
	// Name is the name of the service, and a part of the names of its queues; Name must match [a-z][a-z0-9-]{0,30}. All
	// processes of a service have the same Name. A service that changes its Name gets new, empty queues. Required.
	Name string
	// Prefix is the beginning of the names of all exchanges and queues, such as "shop.". Services that exchange
	// messages have the same Prefix. Default: none.
	Prefix string
	Schema string // PostgreSQL schema of the service's tables; default: Name, with each - replaced by _

	DatabaseURL string        // URL or connection string of PostgreSQL; the Service opens a pool for this URL, and closes the pool; required if Database is nil
	Database    *pgxpool.Pool // pool that the Service uses in place of DatabaseURL; the Service does not close this pool; default: none

	BrokerURL  string             // URL of RabbitMQ, or URLs of several nodes of one cluster, separated by commas; default: a broker inside this process (package inproc)
	Publisher  message.Publisher  // any watermill publisher; set Publisher and Subscriber in place of BrokerURL; the Service does not close the Publisher; default: none
	Subscriber message.Subscriber // any watermill subscriber; set Publisher and Subscriber in place of BrokerURL; default: none

	Steps []consumer.Step // steps that the service runs as a participant of sagas; default: none
	Sagas []saga.Plan     // definitions of sagas that the service orchestrates; default: none

	// Codecs read message bodies that are not JSON; one example is protobuf.Codec. Codecs are for Steps without their own
	// Codecs.
	// Default: none.
	Codecs []outbox.Codec

	// Emits lists the messages that HTTP handlers, local steps and saga.Definition.OnEnd emit; do not list the commands
	// that orchestrated sagas send, or the messages that a Step lists in its own Emits. Only [Service.Topology] uses
	// Emits. Default: none.
	Emits []outbox.Output

	// CloudEvents makes the service send CloudEvents, and read CloudEvents of other services. Default: the service neither
	// sends nor reads CloudEvents.
	CloudEvents *cloudevents.Options

	// Migrations is a file system whose SQL files (001_name.sql and so on) create the service's own tables; in a file,
	// {{.schema}} means the value of Schema. The files are in the root of this file system, or in the only directory of
	// the root. Default: none.
	Migrations fs.FS
	// MigrationsURL is a URL that reaches the database without a pooler, because migrations need a session. Default:
	// DatabaseURL; without DatabaseURL, the URL of the pool Database.
	MigrationsURL string
	// With NoMigrations, Run does not migrate the schema; Run only checks that the schema is at the newest version. Run
	// returns an error if the schema is older. Default: Run applies migrations; if several processes start, one process
	// applies the migrations and the others wait.
	NoMigrations bool

	Requests int // number of requests to handlers of [Service.Idempotent] that may run at the same time; each request uses one database connection; default: 16

	// Telemetry says where metrics and traces go. Default: metrics go to /metrics of [Service.Handler], and traces go to
	// OpenTelemetry's global provider.
	Telemetry *telemetry.Options
	Logger    *slog.Logger // logger of all parts of the Service; default: slog.Default()

	// The options of the parts. The Service sets Schema, Wake, Tracer, Observer and Logger.

	Consumer     consumer.Options           // options of the consumer that runs Steps
	Orchestrator saga.Options               // options of the orchestrator that runs Sagas; the field Orchestrator.Consumer has the options of the consumer that receives replies
	Relay        outbox.RelayOptions        // options of the relay that publishes the outbox
	Idempotency  idemkey.Options            // options of the middleware of [Service.Idempotent]
	Keys         idempg.Options             // options of the store of idempotency keys
	Queues       rabbitmq.ConfigOptions     // options of RabbitMQ's queues; leave Queues.Prefix empty, and set Config.Prefix
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
