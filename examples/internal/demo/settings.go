package demo

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/brokerurls"
	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/plaintext"
)

// Settings are the settings of serve that all programs have.
type Settings struct {
	Program *Program

	Services     []string
	Listen       string
	Namespace    string        // prefix of exchanges and queues
	StartTimeout time.Duration // for database and broker to answer
	Keep         time.Duration // how long published messages are kept
	Console      bool          // serve the console
	Restricted   bool          // the broker's user may declare nothing, and is named in each message

	DatabaseURL    string
	AMQPURL        string
	AllowPlaintext bool // to other machines

	listener net.Listener // opened by Serve, until the App takes it
	stderr   io.Writer    // of Serve
}

var namespacePattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`)

// ServeFlags are the flags of serve, to which a program adds its own.
type ServeFlags struct {
	*flag.FlagSet

	settings     *Settings
	services     *string
	plaintextErr error
}

// NewServeFlags returns flags that set s, with defaults from the environment.
func (s *Settings) NewServeFlags(stderr io.Writer) *ServeFlags {
	p := s.Program
	s.DatabaseURL, s.AMQPURL = os.Getenv("DATABASE_URL"), os.Getenv("AMQP_URL")
	f := &ServeFlags{FlagSet: flag.NewFlagSet(p.Name+" serve", flag.ContinueOnError), settings: s}
	f.SetOutput(io.Discard)
	f.StringVar(&s.Listen, "listen", "127.0.0.1:8080", "address of the HTTP interface")
	f.services = f.String("services", strings.Join(p.Services, ","), "services to run in this process")
	namespace := strings.ToUpper(p.snakeName()) + "_NAMESPACE"
	f.StringVar(&s.Namespace, "namespace", cmp.Or(os.Getenv(namespace), p.Name), "prefix of exchanges and queues, also by "+namespace)
	f.DurationVar(&s.StartTimeout, "start-timeout", 30*time.Second, "how long to wait for database and broker")
	f.DurationVar(&s.Keep, "keep", 0, "how long published messages are kept for sagamill replay (default: an hour)")
	f.BoolVar(&s.Console, consoleFlag, false, consoleUsage)
	f.BoolVar(&s.Restricted, "restricted", false,
		"the broker's user has no more permissions than those of sagamill broker permissions: exchanges and queues are\nnot declared but waited for, and each message names the user")
	allowed, err := plaintext.Allowed()
	f.plaintextErr = err
	f.BoolVar(&s.AllowPlaintext, plaintext.Flag, allowed, plaintext.Usage)
	f.Usage = func() {
		f.SetOutput(stderr)
		fmt.Fprintf(stderr, "usage: %s serve [flags]\n", p.Name)
		f.PrintDefaults()
		fmt.Fprintf(stderr, environmentHelp, strings.Join(p.databaseVariables(), ", "))
	}
	return f
}

// ParseArgs reads args into the settings.
func (f *ServeFlags) ParseArgs(args []string) error {
	if err := parseFlags(f.FlagSet, args); err != nil {
		return err
	}
	if f.plaintextErr != nil {
		return BadSetting(plaintext.Variable, "it is neither true nor false")
	}
	f.settings.Services = strings.Split(*f.services, ",")
	return nil
}

// parseFlags reads args. A mistake is one line, without the usage.
func parseFlags(flags *flag.FlagSet, args []string) error {
	usage := flags.Usage
	flags.Usage = func() {}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		usage()
		return err
	case err != nil:
		return BadSetting("flags", "%v", err)
	case flags.NArg() > 0:
		return BadSetting("arguments", "%q is not a flag", flags.Arg(0))
	}
	return nil
}

const environmentHelp = `
environment:
  DATABASE_URL   PostgreSQL, for every service that has none of its own
  %s
                 PostgreSQL for one service
  AMQP_URL       RabbitMQ, several nodes with commas between them, or inproc: for the broker within the process
  SAGAMILL_ALLOW_PLAINTEXT
                 true: connections to other machines, and from them, may be without TLS
Without DATABASE_URL or AMQP_URL, what runs on this machine is used, or started.
`

// CheckFlags returns a [SettingError] for a flag with a bad value.
func (s *Settings) CheckFlags() error {
	for i, name := range s.Services {
		if !slices.Contains(s.Program.Services, name) {
			return BadSetting("-services", "there is no service %q; there are %s", name, strings.Join(s.Program.Services, ", "))
		}
		if slices.Contains(s.Services[:i], name) {
			return BadSetting("-services", "%s is given twice", name)
		}
	}
	if _, _, err := net.SplitHostPort(s.Listen); err != nil {
		return BadSetting("-listen", "%q is not host:port", s.Listen)
	}
	if !namespacePattern.MatchString(s.Namespace) {
		return BadSetting("-namespace", "%q must match %s", s.Namespace, namespacePattern)
	}
	if s.StartTimeout < time.Millisecond || s.StartTimeout > time.Hour {
		return BadSetting("-start-timeout", "%s is not between 1ms and 1h", s.StartTimeout)
	}
	if s.Keep < 0 {
		return BadSetting("-keep", "%s is negative", s.Keep)
	}
	return nil
}

// CheckURLs returns a [SettingError] for a URL that cannot be used, or that leads to another
// machine without TLS. No error contains a URL, since a URL may contain a password.
func (s *Settings) CheckURLs() error {
	for _, name := range append([]string{"DATABASE_URL"}, s.Program.databaseVariables()...) {
		if value := os.Getenv(name); value != "" {
			if _, err := pgconn.ParseConfig(value); err != nil {
				return BadSetting(name, "it is not a PostgreSQL URL or connection string")
			}
		}
	}
	switch {
	case s.AMQPURL == "":
	case s.AMQPURL != devservices.InProcess && slices.ContainsFunc(brokerurls.Split(s.AMQPURL), isForeignScheme):
		return BadSetting("AMQP_URL", "it must begin with amqp:// or amqps://, as must each of several with commas between them, or be %s", devservices.InProcess)
	case s.AMQPURL == devservices.InProcess && len(s.Services) < len(s.Program.Services):
		return BadSetting("AMQP_URL", "the broker within the process serves no other process: run all services in this one")
	}
	return s.checkPlaintext()
}

// isForeignScheme reports whether at is no URL of RabbitMQ.
func isForeignScheme(at string) bool {
	u, err := url.Parse(at)
	return err != nil || u.Scheme != "amqp" && u.Scheme != "amqps"
}

// checkPlaintext rejects connections to other machines without TLS, because only a bearer
// token authenticates a request.
func (s *Settings) checkPlaintext() error {
	if s.AllowPlaintext {
		return nil
	}
	names := map[string]string{"DATABASE_URL": s.DatabaseURL}
	for _, variable := range s.Program.databaseVariables() {
		names[variable] = os.Getenv(variable)
	}
	for name, value := range names {
		if value == "" {
			continue
		}
		if err := plaintext.Database(value); err != nil {
			return BadSetting(name, "%v", err)
		}
	}
	if err := plaintext.Broker(s.AMQPURL); err != nil {
		return BadSetting("AMQP_URL", "%v", err)
	}
	return nil
}

// CheckHTTP returns a [SettingError] if at leads to another machine without TLS.
func (s *Settings) CheckHTTP(name, at string) error {
	if s.AllowPlaintext {
		return nil
	}
	if err := plaintext.HTTP(at); err != nil {
		return BadSetting(name, "%v", err)
	}
	return nil
}

// DatabaseVariable names the environment variable of a service's own database.
func DatabaseVariable(service string) string { return strings.ToUpper(service) + "_DATABASE_URL" }

func (p *Program) databaseVariables() (names []string) {
	for _, service := range p.Services {
		names = append(names, DatabaseVariable(service))
	}
	return names
}

// findDatabase returns the URL of the service's database, and the variable that has it.
func (s *Settings) findDatabase(service string) (variable, url string) {
	if own := os.Getenv(DatabaseVariable(service)); own != "" {
		return DatabaseVariable(service), own
	}
	return "DATABASE_URL", s.DatabaseURL
}

// openListener listens at the address of the HTTP interface. Its error is a [SettingError], which names the address and
// the flag.
func (s *Settings) openListener() (net.Listener, error) {
	listener, err := net.Listen("tcp", s.Listen)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, BadSetting("-listen", "%s is in use by another program: end that one, or run %s serve -listen 127.0.0.1:0, which takes a free port", s.Listen, s.Program.Name)
	case err != nil:
		return nil, BadSetting("-listen", "%v", err)
	}
	return listener, nil
}

// takeListener returns the listener that Serve has opened, or a new one. The caller closes it.
func (s *Settings) takeListener() (net.Listener, error) {
	if listener := s.listener; listener != nil {
		s.listener = nil
		return listener, nil
	}
	return s.openListener()
}

// Serve finds or starts the servers that the environment does not name, and calls run. It
// stops the servers that it has started when run returns. It starts nothing if the address of the HTTP interface is in
// use.
func (s *Settings) Serve(ctx context.Context, stderr io.Writer, run func(*slog.Logger) error) (err error) {
	if s.listener, err = s.openListener(); err != nil {
		return err
	}
	defer func() {
		if s.listener != nil { // nobody took it
			_ = s.listener.Close()
		}
	}()
	if s.DatabaseURL == "" || s.AMQPURL == "" {
		found, err := devservices.Start(ctx, &devservices.Options{Log: stderr, KeepDatabase: true, Database: s.Program.snakeName()})
		if err != nil {
			return err
		}
		defer found.Close()
		if err := found.Advertise(s.Program.Name); err != nil {
			return err
		}
		fmt.Fprint(stderr, found.Exports())
		s.DatabaseURL, s.AMQPURL = found.DatabaseURL, found.AMQPURL
		if err := s.CheckURLs(); err != nil {
			return err
		}
	}
	s.stderr = stderr
	logger := slog.New(slog.NewTextHandler(stderr, nil))
	slog.SetDefault(logger) // for packages that have no logger of their own
	return run(logger)
}
