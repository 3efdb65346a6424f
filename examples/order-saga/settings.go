package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/brokerurls"
	"github.com/sagamill/sagamill/internal/plaintext"
	"github.com/sagamill/sagamill/internal/tools/devservices"
)

// A settingError names a setting that cannot be used.
type settingError struct{ name, problem string }

func (e *settingError) Error() string { return e.name + ": " + e.problem }

func badSetting(name, format string, args ...any) error {
	return &settingError{name, fmt.Sprintf(format, args...)}
}

// settings are what serve runs with.
type settings struct {
	services   []string
	listen     string
	gatewayURL string        // empty: the gateway in this process
	namespace  string        // before the names of exchanges and queues
	patience   time.Duration // for database and broker to be there
	keep       time.Duration // how long published messages are

	gatewayPlain bool   // the payment gateway knows nothing of idempotency
	trace        string // file for traces; empty: none are made
	restricted   bool   // the broker's user may declare nothing, and is named in each message

	databaseURL    string
	amqpURL        string
	allowPlaintext bool // beyond this machine
}

// defaultNamespace keeps the example's queues apart from everything else on a
// shared broker. Two installations on one broker need two namespaces.
const defaultNamespace = "order-saga"

// gatewayPlainVariable sets -gateway-plain for processes that are not started by
// hand.
const gatewayPlainVariable = "ORDER_SAGA_GATEWAY_PLAIN"

// ownDatabase is what serve keeps its data in on a server that was found.
const ownDatabase = "order_saga"

var namespacePattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`)

// parseServe reads the flags of serve and the environment.
func parseServe(args []string, stderr io.Writer) (*settings, error) {
	s := &settings{databaseURL: os.Getenv("DATABASE_URL"), amqpURL: os.Getenv("AMQP_URL")}
	flags := flag.NewFlagSet("order-saga serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&s.listen, "listen", "127.0.0.1:8080", "address of the HTTP interface")
	names := flags.String("services", strings.Join(serviceNames, ","), "services to run in this process")
	flags.StringVar(&s.gatewayURL, "gateway-url", "", "payment gateway (default: the one in this process)")
	plainVariable := os.Getenv(gatewayPlainVariable)
	plain, plainErr := strconv.ParseBool(cmp.Or(plainVariable, "false"))
	flags.BoolVar(&s.gatewayPlain, "gateway-plain", plain,
		"the payment gateway charges each time it is called, whatever the Idempotency-Key: the one run here, and the one\nthat the payment service calls, which asks GET /charges/{key} before it calls again; also by "+gatewayPlainVariable)
	flags.StringVar(&s.namespace, "namespace", cmp.Or(os.Getenv("ORDER_SAGA_NAMESPACE"), defaultNamespace),
		"prefix of exchanges and queues, also by ORDER_SAGA_NAMESPACE")
	flags.DurationVar(&s.patience, "start-timeout", 30*time.Second, "how long to wait for database and broker")
	flags.DurationVar(&s.keep, "keep", 0, "how long published messages are kept for sagamill replay (default: as long as that costs nothing)")
	flags.StringVar(&s.trace, "trace", "", "file to which traces are appended, a span a line; - for standard error (default: no traces)")
	flags.BoolVar(&s.restricted, "restricted", false,
		"the broker's user has no more permissions than those of sagamill broker permissions: exchanges and queues are\nnot declared but waited for, and each message names the user")
	allowed, allowedErr := plaintext.Allowed()
	flags.BoolVar(&s.allowPlaintext, plaintext.Flag, allowed, plaintext.Usage)
	flags.Usage = func() {
		flags.SetOutput(stderr)
		fmt.Fprintln(stderr, "usage: order-saga serve [flags]")
		flags.PrintDefaults()
		fmt.Fprint(stderr, environmentHelp)
	}
	if err := parse(flags, args); err != nil {
		return nil, err
	}
	if allowedErr != nil {
		return nil, badSetting(plaintext.Variable, "it is neither true nor false")
	}
	if plainErr != nil {
		return nil, badSetting(gatewayPlainVariable, "%q is neither true nor false", plainVariable)
	}
	s.services = strings.Split(*names, ",")
	return s, s.check()
}

// parse reads args. A mistake is one line, without the usage.
func parse(flags *flag.FlagSet, args []string) error {
	usage := flags.Usage
	flags.Usage = func() {}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		usage()
		return err
	case err != nil:
		return badSetting("flags", "%v", err)
	case flags.NArg() > 0:
		return badSetting("arguments", "%q is not a flag", flags.Arg(0))
	}
	return nil
}

const environmentHelp = `
environment:
  DATABASE_URL   PostgreSQL, for every service that has none of its own
  ORDER_DATABASE_URL, PAYMENT_DATABASE_URL, SHIPPING_DATABASE_URL, GATEWAY_DATABASE_URL
                 PostgreSQL for one service
  AMQP_URL       RabbitMQ, several nodes with commas between them, or inproc: for the broker within the process
  SAGAMILL_ALLOW_PLAINTEXT
                 true: connections to other machines, and from them, may be without TLS
Without DATABASE_URL or AMQP_URL, what runs on this machine is used, or started.
`

func (s *settings) check() error {
	for i, name := range s.services {
		if !slices.Contains(serviceNames, name) {
			return badSetting("-services", "there is no service %q; there are %s", name, strings.Join(serviceNames, ", "))
		}
		if slices.Contains(s.services[:i], name) {
			return badSetting("-services", "%s is given twice", name)
		}
	}
	if _, _, err := net.SplitHostPort(s.listen); err != nil {
		return badSetting("-listen", "%q is not host:port", s.listen)
	}
	if !namespacePattern.MatchString(s.namespace) {
		return badSetting("-namespace", "%q must match %s", s.namespace, namespacePattern)
	}
	if s.patience < time.Millisecond || s.patience > time.Hour {
		return badSetting("-start-timeout", "%s is not between 1ms and 1h", s.patience)
	}
	if s.keep < 0 {
		return badSetting("-keep", "%s is negative", s.keep)
	}
	if s.runs("payment") && !s.runs("gateway") && s.gatewayURL == "" {
		return badSetting("-gateway-url", "needed where the payment service runs without the gateway")
	}
	if u, err := url.Parse(s.gatewayURL); s.gatewayURL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return badSetting("-gateway-url", "%q is not an http or https URL", s.gatewayURL)
	}
	s.gatewayURL = strings.TrimSuffix(s.gatewayURL, "/")
	return s.checkURLs()
}

// checkURLs repeats no URL: it may hold a password.
func (s *settings) checkURLs() error {
	names := []string{"DATABASE_URL"}
	for _, service := range serviceNames {
		names = append(names, databaseVariable(service))
	}
	for _, name := range names {
		if value := os.Getenv(name); value != "" {
			if _, err := pgconn.ParseConfig(value); err != nil {
				return badSetting(name, "it is not a PostgreSQL URL or connection string")
			}
		}
	}
	switch {
	case s.amqpURL == "":
	case s.amqpURL != devservices.InProcess && slices.ContainsFunc(brokerurls.Split(s.amqpURL), notAMQP):
		return badSetting("AMQP_URL", "it must begin with amqp:// or amqps://, as must each of several with commas between them, or be %s", devservices.InProcess)
	case s.amqpURL == devservices.InProcess && len(s.services) < len(serviceNames):
		return badSetting("AMQP_URL", "the broker within the process serves no other process: run all services in this one")
	}
	return s.checkPlaintext()
}

// notAMQP reports whether at is not a URL of a broker.
func notAMQP(at string) bool {
	u, err := url.Parse(at)
	return err != nil || u.Scheme != "amqp" && u.Scheme != "amqps"
}

// checkPlaintext refuses what would lead out of this machine, or let others in, without
// TLS: the bearer token is all that tells who asks.
func (s *settings) checkPlaintext() error {
	if s.allowPlaintext {
		return nil
	}
	names := map[string]string{"DATABASE_URL": s.databaseURL}
	for _, service := range serviceNames {
		names[databaseVariable(service)] = os.Getenv(databaseVariable(service))
	}
	for name, value := range names {
		if value == "" {
			continue
		}
		if err := plaintext.Database(value); err != nil {
			return badSetting(name, "%v", err)
		}
	}
	if err := plaintext.Broker(s.amqpURL); err != nil {
		return badSetting("AMQP_URL", "%v", err)
	}
	if err := plaintext.HTTP(s.gatewayURL); err != nil {
		return badSetting("-gateway-url", "%v", err)
	}
	return nil
}

func (s *settings) runs(service string) bool { return slices.Contains(s.services, service) }

func databaseVariable(service string) string { return strings.ToUpper(service) + "_DATABASE_URL" }

// databaseOf returns where service keeps its data, and which setting says so.
func (s *settings) databaseOf(service string) (variable, url string) {
	if own := os.Getenv(databaseVariable(service)); own != "" {
		return databaseVariable(service), own
	}
	return "DATABASE_URL", s.databaseURL
}

// provide finds or starts what the environment does not name. The caller
// closes what is returned, if it is not nil.
func (s *settings) provide(ctx context.Context, stderr io.Writer) (*devservices.Services, error) {
	if s.databaseURL != "" && s.amqpURL != "" {
		return nil, nil
	}
	found, err := devservices.Start(ctx, &devservices.Options{Log: stderr, KeepDatabase: true, Database: ownDatabase})
	if err != nil {
		return nil, err
	}
	s.databaseURL, s.amqpURL = found.DatabaseURL, found.AMQPURL
	if err := s.checkURLs(); err != nil {
		return found, err
	}
	return found, nil
}
