package devservices

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/brokerurls"
	"github.com/sagamill/sagamill/internal/testing/needtest"
)

// works and fails are ways that need no server.
func works(name string) way {
	return way{name, func(context.Context) (instance, error) { return instance{url: "url:" + name, what: "a " + name}, nil }}
}

func fails(name string, err error) way {
	return way{name, func(context.Context) (instance, error) { return instance{}, err }}
}

func TestObtain(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	refused := fmt.Errorf("DATABASE_URL is %w", errRefused)
	tests := []struct {
		name    string
		steps   string
		ways    []way
		want    string // URL
		wantLog []string
		wantErr string
	}{
		{"the first that works", "", []way{works("env"), works("found")}, "url:env",
			[]string{"services: PostgreSQL: a env (env)"}, ""},
		{"absent ones pass without a word", "", []way{fails("env", serviceAbsent("not set")), works("found")}, "url:found",
			[]string{"services: PostgreSQL: a found (found)"}, ""},
		{"broken ones are mentioned", "", []way{fails("private", broken), works("npm")}, "url:npm",
			[]string{"services: PostgreSQL: private did not work, trying on: broken", "services: PostgreSQL: a npm (npm)"}, ""},
		{"refused ends the search", "", []way{fails("env", refused), works("found")}, "", nil, "DATABASE_URL is set, but unusable"},
		{"nothing works", "", []way{fails("env", serviceAbsent("not set")), fails("apt", broken)}, "",
			[]string{"services: PostgreSQL: apt did not work, trying on: broken"}, "set DATABASE_URL"},
		{"restricted", "private,npm", []way{works("env"), works("npm"), works("private")}, "url:npm",
			[]string{"services: PostgreSQL: a npm (npm)"}, ""},
		{"restricted to ways of other services", "inproc", []way{works("env")}, "url:env",
			[]string{"services: PostgreSQL: a env (env)"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			r := &run{log: &log}
			if err := r.allowWays(tt.steps); err != nil {
				t.Fatal(err)
			}
			in, err := r.obtainService(t.Context(), "PostgreSQL", tt.ways)
			if in.url != tt.want || (err != nil) != (tt.wantErr != "") {
				t.Errorf("obtain = %q, %v; want %q", in.url, err, tt.want)
			}
			if err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %q does not say %q", err, tt.wantErr)
			}
			if got := lines(&log); !slices.Equal(got, tt.wantLog) {
				t.Errorf("log = %q, want %q", got, tt.wantLog)
			}
		})
	}
}

func lines(log *bytes.Buffer) []string {
	return strings.FieldsFunc(log.String(), func(r rune) bool { return r == '\n' })
}

// A cancelled Start must not go on to the next way, which would fail as well
// and hide the reason.
// A system without private servers tries no way that starts one.
func TestObtainWithoutPrivateServers(t *testing.T) {
	t.Parallel()
	r := &run{log: &bytes.Buffer{}, noPrivate: true}
	in, err := r.obtainService(t.Context(), "PostgreSQL", []way{works("private"), works("npm"), works("apt"), works("inproc")})
	if err != nil || in.url != "url:inproc" {
		t.Errorf("got %q, %v; want url:inproc", in.url, err)
	}
	_, err = r.obtainService(t.Context(), "PostgreSQL", []way{works("private"), works("npm")})
	if err == nil || !strings.Contains(err.Error(), "private  this system runs no private servers") {
		t.Errorf("error = %v, want one that names what is missing", err)
	}
}

func TestObtainCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	ways := []way{
		{"found", func(context.Context) (instance, error) { cancel(); return instance{}, ctx.Err() }},
		{"private", func(context.Context) (instance, error) { t.Error("went on"); return instance{}, nil }},
	}
	r := &run{log: &bytes.Buffer{}}
	if _, err := r.obtainService(ctx, "PostgreSQL", ways); !errors.Is(err, context.Canceled) {
		t.Errorf("obtain = %v, want %v", err, context.Canceled)
	}
}

// The order is a promise to the user: what is nearer to hand comes first.
func TestOrder(t *testing.T) {
	t.Parallel()
	r, own := &run{}, &run{own: true}
	for _, tt := range []struct {
		ways []way
		want string
	}{
		{r.allowedWays(r.postgresWays()), "env found private npm apt"},
		{r.allowedWays(r.rabbitWays()), "env found private apt inproc"},
		{r.allowedWays(r.redisWays()), "env found private apt none"},
		{r.allowedWays(r.natsWays()), "env found private none"},
		{own.allowedWays(own.postgresWays()), "env private found npm apt"},
		{own.allowedWays(own.natsWays()), "env private found none"},
	} {
		var got []string
		for _, w := range tt.ways {
			got = append(got, w.name)
			if !slices.Contains(wayNames, w.name) {
				t.Errorf("way %q cannot be named in %s", w.name, stepsVariable)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("order %q, want %q", got, tt.want)
		}
	}
}

func TestStartUnknownStep(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), &Options{Steps: "privat", Log: &bytes.Buffer{}})
	if err == nil || !strings.Contains(err.Error(), `"privat"`) {
		t.Errorf("Start with an unknown step = %v, want an error that names it", err)
	}
}

// A failed start undoes what it had started, the latest first.
func TestStartUndoes(t *testing.T) {
	t.Parallel()
	r := &run{log: &bytes.Buffer{}}
	var undone []string
	starts := func(name string) way {
		return way{name, func(context.Context) (instance, error) {
			r.undoOnClose(func() error { undone = append(undone, name); return nil })
			return instance{url: name}, nil
		}}
	}
	s, err := r.startServices(t.Context(), []way{starts("private")}, []way{starts("apt")}, true)
	if err != nil {
		t.Fatal(err)
	}
	if s.DatabaseURL != "private" || s.AMQPURL != "apt" {
		t.Errorf("services = %q, %q", s.DatabaseURL, s.AMQPURL)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if want := []string{"apt", "private"}; !slices.Equal(undone, want) {
		t.Errorf("undone %q, want %q once", undone, want)
	}
}

// A URL that the user set is used or is an error: never passed over, and its
// password never shown.
func TestNamedButUnreachable(t *testing.T) {
	t.Parallel()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	_, pgErr := namedPostgres.useNamed(t.Context(), "postgres://u:hunter2@"+loopback(port)+"/d")
	_, pgParse := namedPostgres.useNamed(t.Context(), "host=h password = hunter2 sslmode=none") // pgx's own error shows it
	_, mqErr := namedRabbit(t.Context(), "amqp://u:hunter2@"+loopback(port)+"/")
	_, mqParse := namedRabbit(t.Context(), "amqp://u:hunter2@%zz/")
	_, mqAll := namedRabbit(t.Context(), "amqp://u:hunter2@"+loopback(port)+"/,amqp://u:hunter2@%zz/")
	_, redisErr := optionalRedis.useNamed(t.Context(), "redis://u:hunter2@"+loopback(port))
	_, redisParse := optionalRedis.useNamed(t.Context(), "redis://u:hunter2@h/no-number")
	_, natsErr := optionalNATS.useNamed(t.Context(), "nats://u:hunter2@"+loopback(port))
	_, natsParse := optionalNATS.useNamed(t.Context(), "nats://u:hunter2@%zz/")
	for variable, errs := range map[string][]error{
		"DATABASE_URL": {pgErr, pgParse}, "AMQP_URL": {mqErr, mqParse, mqAll}, "REDIS_URL": {redisErr, redisParse}, "NATS_URL": {natsErr, natsParse},
	} {
		for _, err := range errs {
			if !errors.Is(err, errRefused) || !strings.Contains(err.Error(), variable) {
				t.Errorf("error %v does not refuse %s", err, variable)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error shows the password: %v", err)
			}
		}
	}
	if _, err := namedPostgres.useNamed(t.Context(), ""); !errors.Is(err, errAbsent) {
		t.Errorf("unset DATABASE_URL: %v, want %v", err, errAbsent)
	}
	if in, err := namedRabbit(t.Context(), InProcess); err != nil || in.url != InProcess {
		t.Errorf("AMQP_URL=%s: %v, %v", InProcess, in, err)
	}
}

// One of several brokers has to answer; programs get all of them.
func TestOneOfTheNamedBrokersIsEnough(t *testing.T) {
	t.Parallel()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	one := cmp.Or(brokerurls.Split(os.Getenv("AMQP_URL"))[0], usualRabbit)
	if _, err := probeRabbit(t.Context(), findTimeout, one); err != nil {
		needtest.Missing(t, "rabbitmq", "no broker: %v", err)
	}
	list := "amqp://u:hunter2@" + loopback(port) + "/, " + one
	if in, err := namedRabbit(t.Context(), list); err != nil || in.url != list || !strings.HasPrefix(in.what, "version ") {
		t.Errorf("AMQP_URL of two, of which one answers: %+v, %v", in, err)
	}
}

func TestEnviron(t *testing.T) {
	t.Parallel()
	s := &Services{DatabaseURL: "d", AMQPURL: "a"}
	old := []string{"DATABASE_URL=old", "REDIS_URL=old", "HOME=h", stepsVariable + "=private"}
	want := []string{"REDIS_URL=old", "HOME=h", "DATABASE_URL=d", "AMQP_URL=a", stepsVariable + "=env"}
	if got := s.Environ(old); !slices.Equal(got, want) {
		t.Errorf("Environ = %q, want %q", got, want)
	}
	s.RedisURL, s.NATSURL, s.postgresBin = "r", "n", "/b"
	want = append(want[1:], "REDIS_URL=r", "NATS_URL=n", postgresVariable+"=/b")
	if got := s.Environ(append(old, "NATS_URL=old", postgresVariable+"=14")); !slices.Equal(got, want) {
		t.Errorf("Environ with Redis and NATS = %q, want %q", got, want)
	}
}

func TestWithDatabase(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ dsn, want string }{
		{"postgres://u:p@h:1/old?sslmode=disable", "postgres://u:p@h:1/new?sslmode=disable"},
		{"postgresql://h", "postgresql://h/new"},
		{"postgres:///old?database=x&host=%2Frun", "postgres:///new?host=%2Frun"},
		{"host=h dbname=old", "host=h dbname=old dbname=new"},
	} {
		if got, err := withDatabase(tt.dsn, "new"); got != tt.want || err != nil {
			t.Errorf("withDatabase(%q) = %q, %v; want %q", tt.dsn, got, err, tt.want)
		}
	}
}

func TestIsLitter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name string
		want bool
	}{
		{"sagamill_20260301_aaaaaaaaaaaa", true},
		{"sagamill_20260309_aaaaaaaaaaaa", false},
		{"sagamill_20260401_aaaaaaaaaaaa", false}, // another machine's clock
		{"sagamill_20260301", false},
		{"sagamill_99999999_aaaaaaaaaaaa", false},
		{"sagamill_production", false},
		{"other_20260301_aaaaaaaaaaaa", false},
	} {
		if got := isLitter(tt.name, now); got != tt.want {
			t.Errorf("isLitter(%q) = %t, want %t", tt.name, got, tt.want)
		}
	}
}
