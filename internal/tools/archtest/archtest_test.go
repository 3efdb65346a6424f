package archtest

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

const root = "../../.."

// parsedModule returns every file of the module, which the tests only read.
var parsedModule = sync.OnceValues(func() ([]*file, error) { return parseModule(root) })

func TestModule(t *testing.T) {
	t.Parallel()
	all, err := parsedModule()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("found %d Go files: is %s the module's root?", len(all), root)
	}
	for _, f := range all {
		for _, r := range rules {
			for _, wrong := range r.check(f) {
				t.Errorf("%s: %s", r.name, wrong)
			}
		}
	}
}

func TestRepositoryFiles(t *testing.T) {
	t.Parallel()
	for name, check := range map[string]func(string) []string{
		"go.mod":                        checkModule,
		"Makefile":                      checkMakefile,
		".github/workflows/ci.yml":      checkWorkflow,
		".github/workflows/nightly.yml": checkWorkflow,
		".github/workflows/release.yml": checkRelease,
		".ci/run":                       checkRun,
	} {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, wrong := range check(string(content)) {
			t.Error(wrong)
		}
	}
}

// importing returns the source of a file of package p with one import.
func importing(name string) string { return "package p\n\nimport _ \"" + name + "\"\n" }

// breaches are files that break one rule each, or that just keep it.
var breaches = []struct {
	rule, path, src string
	fires           bool
}{
	{"import direction", "outbox/a.go", importing(module + "/consumer"), true},
	{"import direction", "outbox/a.go", importing(module + "/idemkey"), true},
	{"import direction", "outbox/a.go", importing(module + "/migrations"), true},
	{"import direction", "outbox/a.go", importing(module + "/internal/sqlschema"), false},
	{"import direction", "outbox/a_test.go", importing(module + "/rabbitmq"), false},
	{"import direction", "internal/inbox/a.go", importing(module + "/outbox"), true},
	{"import direction", "internal/suites/sagastorm/a.go", importing(module + "/outbox"), false},
	{"product without tests and tools", "internal/inbox/a.go", importing(module + "/internal/testing/pgtest"), true},
	{"product without tests and tools", "outbox/a.go", importing(module + "/internal/devservices"), true},
	{"product without tests and tools", "outbox/a_test.go", importing(module + "/internal/testing/pgtest"), false},
	{"product without tests and tools", "examples/internal/demo/a.go", importing(module + "/internal/devservices"), false},
	{"product without tests and tools", "examples/order-saga/a.go", importing(module + "/internal/testing/pgtest"), true},
	{"product without tests and tools", "internal/suites/roletest/a.go", importing(module + "/internal/testing/pgtest"), false},
	{"import direction", "outbox/a_test.go", importing(module + "/examples/order-saga"), true},
	{"import direction", "telemetry/a.go", importing(module + "/saga"), false},
	{"import direction", "telemetry/a.go", importing(module + "/cmd/sagamill"), true},
	{"import direction", "outbox/a.go", importing(module + "/telemetry"), true},
	{"import direction", "outbox/outboxtest/a.go", importing(module + "/outbox"), false},
	{"import direction", "idemkey/a.go", importing(module + "/outbox"), true},
	{"import direction", "idemkey/idempg/a.go", importing(module + "/idemkey"), false},
	{"import direction", "idemkey/idempg/a.go", importing(module + "/consumer"), true},
	{"import direction", "idemkey/idemredis/a.go", importing(module + "/idemkey"), false},
	{"import direction", "idemkey/idemredis/a.go", importing(module + "/consumer"), true},
	{"import direction", "idemkey/idemhybrid/a.go", importing(module + "/idemkey/idempg"), false},
	{"import direction", "idemkey/idemhybrid/a.go", importing(module + "/migrations"), true},
	{"import direction", "consumer/a.go", importing(module + "/outbox"), false},
	{"import direction", "consumer/a.go", importing(module + "/saga"), true},
	{"import direction", "consumer/a.go", importing(module + "/rabbitmq"), true},
	{"import direction", "saga/a.go", importing(module + "/consumer"), false},
	{"import direction", "saga/a.go", importing(module + "/inproc"), true},
	{"import direction", "saga/a.go", importing(module + "/cmd/sagamill"), true},
	{"import direction", "saga/a.go", importing(module + "/operator"), true},
	{"import direction", "operator/a.go", importing(module + "/saga"), false},
	{"import direction", "operator/a.go", importing(module + "/rabbitmq"), true},
	{"core without broker", "operator/a.go", importing("github.com/rabbitmq/amqp091-go"), true},
	{"import direction", "rabbitmq/a.go", importing(module + "/outbox"), false},
	{"import direction", "rabbitmq/a.go", importing(module + "/consumer"), true},
	{"import direction", "inproc/a.go", importing(module + "/rabbitmq"), true},
	{"import direction", "topology/a.go", importing(module + "/saga"), false},
	{"import direction", "topology/a.go", importing(module + "/rabbitmq"), true},
	{"import direction", "consumer/a.go", importing(module + "/topology"), true},
	{"import direction", "migrations/a.go", importing(module + "/outbox"), true},
	{"import direction", "examples/shop/a.go", importing(module + "/saga"), false},
	{"import direction", "examples/internal/demo/a.go", importing(module + "/internal/devservices"), false},
	{"import direction", "examples/internal/demo/a.go", importing(module + "/internal/plaintext"), false},
	{"import direction", "examples/internal/demo/a.go", importing(module + "/internal/backoff"), false},
	{"import direction", "examples/internal/web/a.go", importing(module + "/internal/backoff"), true},
	{"import direction", "examples/internal/web/a.go", importing(module + "/idemkey"), false},
	{"import direction", "examples/shop/a.go", importing(module + "/internal/backoff"), true},
	{"import direction", "examples/shop/a.go", importing(module + "/examples/internal/web"), false},
	{"import direction", "examples/shop/a.go", importing(module + "/internal/brokerurls"), true},
	{"import direction", "examples/shop/a.go", importing(module + "/internal/stepkey"), true},
	{"import direction", "examples/shop/a.go", importing(module + "/examples/internal/demo"), false},
	{"import direction", "outbox/a.go", importing(module + "/examples/internal/demo"), true},
	{"import direction", "examples/shop/a.go", importing(module + "/examples/other"), true},
	{"import direction", "examples/shop/a.go", importing(module + "/examples/shop/payment"), false},
	{"import direction", "cmd/sagamill/internal/a/a.go", importing(module + "/cmd/sagamill/internal/b"), false},
	{"import direction", "internal/a/a.go", importing(module + "/cmd/sagamill"), true},
	{"import direction", "invented/a.go", importing("fmt"), true},
	{"import direction", "a.go", importing(module + "/saga"), false},
	{"import direction", "a.go", importing(module + "/operator"), true},

	{"core without broker", "consumer/a.go", importing("github.com/rabbitmq/amqp091-go"), true},
	{"core without broker", "idemkey/idempg/a.go", importing("github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"), true},
	{"core without broker", "consumer/a.go", importing("github.com/ThreeDotsLabs/watermill/message"), false},
	{"core without broker", "rabbitmq/a.go", importing("github.com/rabbitmq/amqp091-go"), false},
	{"core without broker", "outbox/a_test.go", importing("github.com/rabbitmq/amqp091-go"), false},

	{"core without framework", "idemkey/a.go", importing("github.com/gin-gonic/gin"), true},
	{"core without framework", "idemkey/a.go", importing("github.com/labstack/echo/v4"), true},
	{"core without framework", "idemkey/a.go", importing("go.opentelemetry.io/otel/trace"), true},
	{"core without framework", "idemkey/a.go", importing(module + "/idemkey/idemgin"), true},
	{"core without framework", "idemkey/idempg/a.go", importing("github.com/gin-gonic/gin"), true},
	{"core without framework", "idemkey/idempg/a.go", importing(module + "/telemetry"), true},
	{"core without framework", "idemkey/idemecho/a.go", importing("github.com/gin-gonic/gin/binding"), true},
	{"core without framework", "idemkey/idemecho/a.go", importing(module + "/idemkey/idemgin"), true},
	{"core without framework", "outbox/a.go", importing("go.opentelemetry.io/otel"), true},
	{"core without framework", "outbox/a.go", importing(module + "/telemetry"), true},
	{"core without framework", "sagatest/a.go", importing(module + "/telemetry"), true},
	{"core without framework", "telemetry/a.go", importing(module + "/idemkey/idemgin"), true},
	{"core without framework", "telemetry/a.go", importing("github.com/gin-gonic/gin"), true},
	{"core without framework", "telemetry/a.go", importing("go.opentelemetry.io/otel/sdk/metric"), true},
	{"core without framework", "telemetry/a.go", importing("go.opentelemetry.io/otel/metric"), false},
	{"core without framework", "telemetry/a_test.go", importing("go.opentelemetry.io/otel/sdk/metric"), false},
	{"core without framework", "idemkey/idemgin/a.go", importing("github.com/gin-gonic/gin"), false},
	{"core without framework", "idemkey/idemecho/a.go", importing("github.com/labstack/echo/v4"), false},
	{"core without framework", "examples/shop/a.go", importing(module + "/telemetry"), false},
	{"core without framework", "examples/shop/a.go", importing(module + "/idemkey/idemgin"), false},
	{"import direction", "idemkey/idemgin/a.go", importing(module + "/idemkey"), false},
	{"import direction", "idemkey/idemgin/a.go", importing(module + "/saga"), true},
	{"core without Redis", "internal/devservices/a.go", importing("github.com/redis/go-redis/v9"), true},
	{"core without Redis", "examples/shop/a.go", importing(module + "/idemkey/idemredis"), true},
	{"core without Redis", "examples/gateway/a.go", importing(module + "/idemkey/idemredis"), false},
	{"core without Redis", "internal/testing/redistest/a.go", importing("github.com/redis/go-redis/v9"), false},
	{"core without Redis", "idemkey/a.go", importing("github.com/redis/go-redis/v9"), true},
	{"core without Redis", "idemkey/a.go", importing(module + "/internal/rediskey"), true},
	{"core without Redis", "idemkey/idempg/a.go", importing(module + "/idemkey/idemredis"), true},
	{"core without Redis", "saga/a.go", importing(module + "/idemkey/idemhybrid"), true},
	{"core without Redis", "idemkey/idemredis/a.go", importing("github.com/redis/go-redis/v9"), false},
	{"core without Redis", "idemkey/idemhybrid/a.go", importing(module + "/internal/rediskey"), false},
	{"core without Redis", "idemkey/a_test.go", importing("github.com/redis/go-redis/v9"), false},

	{"leaf packages", "internal/stepkey/a.go", importing("github.com/google/uuid"), true},
	{"leaf packages", "internal/sqlschema/a.go", importing(module + "/outbox"), true},
	{"leaf packages", "internal/stepkey/a.go", importing("golang.org/x/text/width"), false},
	{"leaf packages", "internal/stepkey/a_test.go", importing("github.com/google/go-cmp/cmp"), false},

	{"pure state machine", "internal/machine/a.go", importing("os"), true},
	{"pure state machine", "internal/machine/a.go", importing("math/rand/v2"), true},
	{"pure state machine", "internal/machine/a.go", importing("github.com/jackc/pgx/v5"), true},
	{"pure state machine", "internal/machine/a.go", importing(module + "/internal/sqlschema"), true},
	{"pure state machine", "internal/machine/a.go", importing(module + "/internal/stepkey"), false},
	{"pure state machine", "internal/machine/a.go", importing("time"), false},
	{"pure state machine", "internal/machine/a.go", "package p\n\nvar _ = time.Now()\n", true},
	{"pure state machine", "internal/machine/a.go", "package p\n\nvar _ time.Duration = time.Second\n", false},
	{"pure state machine", "internal/machine/a_test.go", importing("os"), false},

	{"test packages in tests", "outbox/a.go", importing(module + "/internal/testing/pgtest"), true},
	{"test packages in tests", "outbox/a_test.go", importing(module + "/internal/testing/pgtest"), false},
	{"test packages in tests", "internal/testing/rabbittest/a.go", importing(module + "/internal/testing/pgtest"), false},

	{"forbidden import", "outbox/a_test.go", importing("github.com/jackc/pgx/v5/stdlib"), true},
	{"forbidden import", "outbox/a.go", importing("github.com/jackc/pgx/v5"), false},

	{"no SafeToRetry", "outbox/a.go", "package p\n\nvar _ = pgconn.SafeToRetry(nil)\n", true},
	{"no SafeToRetry", "outbox/a_test.go", "package p\n\nvar _ = pgconn.SafeToRetry(nil)\n", false},

	{"no sleeping test", "outbox/a_test.go", "package p\n\nfunc f() { time.Sleep(1) }\n", true},
	{"no sleeping test", "outbox/a_test.go", "package p\n\nimport _ \"testing/synctest\"\n\nfunc f() { time.Sleep(1) }\n", false},
	{"no sleeping test", "outbox/a.go", "package p\n\nfunc f() { time.Sleep(1) }\n", false},
	{"slow tests are found", "outbox/a_test.go", "package p\n\nfunc TestX(t *testing.T) {\n\tneedtest.Slow(t)\n}\n", false},
	{"slow tests are found", "outbox/a_test.go", "package p\n\nfunc TestX(t *testing.T) {\n\tif big { needtest.Slow(t) }\n}\n", true},
	{"slow tests are found", "outbox/a_test.go", "package p\n\nfunc TestX(tb *testing.T) {\n\tneedtest.Slow(tb)\n}\n", true},
	{"slow tests are found", "outbox/a_test.go", "package p\n\nfunc help(t *testing.T) {\n\tneedtest.Slow(t)\n}\n", true},
	{"slow tests are found", "outbox/a_test.go", "package p\n\nfunc TestX(t *testing.T) {\n\tif testing.Short() { return }\n}\n", true},
	{"slow tests are found", "outbox/a_test.go", "package p\n\nfunc TestX(t *testing.T) {\n\tneedtest.Shortened(t)\n\trapid.Check(t, f)\n}\n", false},
	{"slow tests are found", "outbox/a_test.go", "package p\n\nfunc TestX(t *testing.T) {\n\trapid.Check(t, f)\n}\n", true},

	{"no formatted SQL", "outbox/a.go", "package p\n\nvar _ = fmt.Sprintf(`\nSELECT id FROM %s`, t)\n", true},
	{"no formatted SQL", "outbox/a.go", "package p\n\nvar _ = fmt.Sprintf(\"DELETE FROM t \"+\n\"WHERE id = %d\", id)\n", true},
	{"no formatted SQL", "outbox/a.go", "package p\n\nvar _ = fmt.Sprintf(\"Select one of %s\", t)\n", false},

	{"no listener", "outbox/a.go", "package p\n\nvar _, _ = net.Listen(\"tcp\", \":1\")\n", true},
	{"no listener", "cmd/sagamill/a.go", "package p\n\nvar _ = http.ListenAndServe(\":1\", nil)\n", true},
	{"no listener", "idemkey/a.go", "package p\n\nvar _ = &http.Server{}\n", true},
	{"no listener", "internal/inbox/a.go", "package p\n\nvar _, _ = tls.Listen(\"tcp\", \":1\", nil)\n", true},
	{"no listener", "idemkey/a.go", "package p\n\nvar _ http.Handler\n", false},
	{"no listener", "outbox/a_test.go", "package p\n\nvar _, _ = net.Listen(\"tcp\", \":1\")\n", false},
	{"no listener", "examples/shop/a.go", "package p\n\nvar _, _ = net.Listen(\"tcp\", \":1\")\n", false},
	{"no listener", "examples/shop/a.go", importing("net/http/pprof"), true},
	{"no listener", "saga/a.go", importing("expvar"), true},
	{"no init", "outbox/a.go", "package p\n\nfunc init() {}\n", true},
	{"no init", "outbox/a.go", "package p\n\nfunc (t) init() {}\n", false},

	{"package name", "internal/a/a.go", "package helpers\n", true},
	{"package name", "internal/util/a.go", "package a\n", true},
	{"package name", "internal/drain/a_test.go", "package drain_test\n", false},
}

func TestRules(t *testing.T) {
	t.Parallel()
	fired := make(map[string]bool)
	for _, b := range breaches {
		f, err := parseFile(b.path, []byte(b.src))
		if err != nil {
			t.Fatalf("%s: %v", b.path, err)
		}
		i := slices.IndexFunc(rules, func(r rule) bool { return r.name == b.rule })
		if i < 0 {
			t.Errorf("%s: no rule is called %q", b.path, b.rule)
			continue
		}
		wrong := rules[i].check(f)
		if got := len(wrong) > 0; got != b.fires {
			t.Errorf("rule %q on %s fires = %t (%q), want %t:\n%s", b.rule, b.path, got, wrong, b.fires, b.src)
		}
		fired[b.rule] = fired[b.rule] || len(wrong) > 0
	}
	for _, r := range rules {
		if !fired[r.name] {
			t.Errorf("no case shows that rule %q fires", r.name)
		}
	}
}

func TestCheckModule(t *testing.T) {
	t.Parallel()
	const good = "require (\n\tgithub.com/jackc/pgx/v5 v5.12.0\n\tgithub.com/rabbitmq/amqp091-go v1.17.3 // indirect\n)\n"
	tests := []struct {
		name, gomod string
		want        int
	}{
		{"new enough", good, 0},
		{"old pgx", "require github.com/jackc/pgx/v5 v5.9.9\nrequire github.com/rabbitmq/amqp091-go v1.16.0\n", 1},
		{"pre-release", "require github.com/jackc/pgx/v5 v5.12.0-rc.1\nrequire github.com/rabbitmq/amqp091-go v1.16.0\n", 1},
		{"both missing", "module m\n", 2},
	}
	for _, tt := range tests {
		if got := checkModule(tt.gomod); len(got) != tt.want {
			t.Errorf("%s: checkModule = %q, want %d messages", tt.name, got, tt.want)
		}
	}
}

func TestCheckMakefile(t *testing.T) {
	t.Parallel()
	for makefile, want := range map[string]int{
		"TESTFLAGS ?= -tags=failpoints\ncheck:\n\t$(GO) vet -tags=failpoints ./...\nbin/a:\n\t$(GO) build ./a\n": 0,
		"bin/a:\n\t$(GO) build -tags=other ./a\n": 1,
		"export GOFLAGS := -tags=other\n":         1,
	} {
		if got := checkMakefile(makefile); len(got) != want {
			t.Errorf("checkMakefile of\n%s= %q, want %d messages", makefile, got, want)
		}
	}
}
