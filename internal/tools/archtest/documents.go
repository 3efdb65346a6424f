package archtest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A statedDefault is a default in the prose of a document, and the line of code that sets it. A changed default fails
// the check, because its line is gone: then mend the document and this table.
type statedDefault struct {
	document string
	phrase   string // with single spaces
	file     string
	source   string
}

// statedDefaults has every "by default" of the documents that follows a number.
var statedDefaults = []statedDefault{
	{"docs/tutorial-choreography.md", "(after a day, by default)", "idemkey/options.go", "DefaultTTL               = 24 * time.Hour"},
	{"docs/tutorial-choreography.md", "at most 10 times by default", "consumer/step.go", "s.MaxAttempts = cmp.Or(s.MaxAttempts, 10)"},
	{"docs/tutorial-choreography.md", "which is 10 seconds by default (`idempg.Options.Grace`)", "idemkey/idempg/options.go", "DefaultGrace           = 10 * time.Second"},
	{"docs/tutorial-choreography.md", "For five seconds its relays stand by", "outbox/relay.go", "o.Lease = cmp.Or(o.Lease, 5*time.Second)"},
	{"docs/upgrading.md", "as long as `Limits.TTL`, 24 h by default", "idemkey/options.go", "DefaultTTL               = 24 * time.Hour"},
	{"docs/scaling.md", "the default retention of 30 days", "consumer/retention.go", "DefaultRetention     = 30 * 24 * time.Hour"},
	{"docs/runbook.md", "`Options.Patience`, 24 h by default", "saga/orchestrator.go", "o.Patience = cmp.Or(o.Patience, 24*time.Hour)"},
	{"docs/runbook.md", "`RelayOptions.Retention`, an hour by default", "outbox/relay.go", "o.Retention = cmp.Or(o.Retention, time.Hour)"},
	// Nine waits after failures, each from an eighth of its ceiling to the whole: 64 to 511 s.
	{"docs/runbook.md", "one to nine minutes after", "consumer/step.go", "s.MaxAttempts = cmp.Or(s.MaxAttempts, 10)"},
	{"docs/faq.md", "one to nine minutes, and usually five", "consumer/step.go", "s.RetryBase = cmp.Or(s.RetryBase, time.Second)"},
	{"docs/faq.md", "one to nine minutes, and usually five", "consumer/step.go", "s.RetryCap = cmp.Or(s.RetryCap, 5*time.Minute)"},
	{"docs/operating.md", "send out 500 messages a second by default (`-rate`)", "cmd/sagamill/internal/cli/consent.go", "defaultRate = 500"},
	{"docs/operating.md", "500 messages a second by default (`-rate`)", "cmd/sagamill/internal/cli/consent.go", "defaultRate = 500"},
	{"docs/operating.md", "in a second, 500 by default", "cmd/sagamill/internal/cli/consent.go", "defaultRate = 500"},
	{"docs/operating.md", "`RelayOptions.Retention`, an hour by default", "outbox/relay.go", "o.Retention = cmp.Or(o.Retention, time.Hour)"},
	{"docs/operating.md", "20 times by default", "outbox/relay.go", "o.MaxAttempts = cmp.Or(o.MaxAttempts, 20)"},
	{"docs/operating.md", "by default within 250 ms (`TimerPoll`)", "saga/orchestrator.go", "o.TimerPoll = cmp.Or(o.TimerPoll, 250*time.Millisecond)"},
	{"docs/operating.md", "Records expire after their TTL, 24 h by default", "idemkey/options.go", "DefaultTTL               = 24 * time.Hour"},
	{"docs/operating.md", "more than `Retention` (30 days) ago", "consumer/retention.go", "DefaultRetention     = 30 * 24 * time.Hour"},
	{"docs/deploy.md", "renews its lease (5 s by default)", "outbox/relay.go", "o.Lease = cmp.Or(o.Lease, 5*time.Second)"},
	{"docs/deploy.md", "Handlers may take `DrainTimeout` (30 s)", "consumer/options.go", "o.DrainTimeout = cmp.Or(o.DrainTimeout, 30*time.Second)"},
	{"docs/deploy.md", "requests 30 s more", "run.go", "shutdownTimeout   = 30 * time.Second"},
	{"docs/deploy.md", "the relay 10 s", "outbox/relay.go", "o.DrainTimeout = cmp.Or(o.DrainTimeout, 10*time.Second)"},
	{"docs/disaster-recovery.md", "`RelayOptions.Retention` now.** The default is an hour", "outbox/relay.go", "o.Retention = cmp.Or(o.Retention, time.Hour)"},
	{"docs/disaster-recovery.md", "2 × `Step.Timeout` + 20 s, which is 80 s by default", "consumer/step.go", "s.Timeout = cmp.Or(s.Timeout, 30*time.Second)"},
	{"docs/rabbitmq.md", "`\"processes\"`, 4 by default", "rabbitmq/topology.go", "defaultProcesses      = 4"},
	{"docs/inbox.md", "`Options.BatchSize` messages share a transaction, 64 by default", "consumer/options.go", "o.BatchSize = cmp.Or(o.BatchSize, 64)"},
	{"docs/inbox.md", "`Options.BatchBytes`, 64 MiB by default", "consumer/execute_batch.go", "defaultBatchBytes = 8 * outbox.MaxPayload"},
	{"docs/outbox.md", "`RelayOptions.Retention`, an hour by default", "outbox/relay.go", "o.Retention = cmp.Or(o.Retention, time.Hour)"},
	{"docs/faq.md", "`Options.MaxPayload`, which is 8 MiB by default", "outbox/write_message.go", "MaxPayload     = 8 << 20"},
	{"docs/external-calls.md", "`Step.Settle` (1 minute by default)", "consumer/step.go", "s.Settle = cmp.Or(s.Settle, time.Minute)"},
}

// foreignDefaults are defaults of other programs, and results of calculations.
var foreignDefaults = []string{"8 GB by default", "*`net_ticktime`* is 60 s by default"}

// byDefault matches a number, or "a day" and the like, with its "by default".
var byDefault = regexp.MustCompile(`(?:\d[\d.,]*|an?|five)(?: [A-Za-z]+){0,3},? by default`)

// checkDefaults returns the defaults of the document called name that are not those of the code, and those that
// nothing compares with the code. source returns the text of a Go file.
func checkDefaults(name, document string, stated []statedDefault, source func(string) (string, error)) (wrong []string) {
	prose := strings.Join(strings.Fields(document), " ")
	unknown := prose
	for _, d := range stated {
		if d.document != name {
			continue
		}
		if !strings.Contains(prose, d.phrase) {
			wrong = append(wrong, fmt.Sprintf("%s: lacks %q, which statedDefaults compares with %s", name, d.phrase, d.file))
		}
		unknown = strings.ReplaceAll(unknown, d.phrase, "")
		if code, err := source(d.file); err != nil {
			wrong = append(wrong, err.Error())
		} else if !strings.Contains(code, d.source) {
			wrong = append(wrong, fmt.Sprintf("%s: %q is not the default of %s, which lacks %q", name, d.phrase, d.file, d.source))
		}
	}
	for _, phrase := range foreignDefaults {
		unknown = strings.ReplaceAll(unknown, phrase, "")
	}
	for _, phrase := range byDefault.FindAllString(unknown, -1) {
		wrong = append(wrong, fmt.Sprintf("%s: %q is compared with no line of code: add it to statedDefaults", name, phrase))
	}
	return wrong
}

var (
	composePassword = regexp.MustCompile(`(?m)^ +POSTGRES_PASSWORD: (\S+)$`)
	localServer     = regexp.MustCompile(`(postgres|amqp)://([^@/\s]+)@(?:127\.0\.0\.1|localhost):(?:5432|5672)`)
)

// checkCredentials returns the URLs of a document that the servers of docker-compose.yml refuse.
func checkCredentials(name, document, compose string) (wrong []string) {
	password := composePassword.FindStringSubmatch(compose)
	if password == nil {
		return []string{"docker-compose.yml: PostgreSQL has no password"}
	}
	accounts := map[string]string{"postgres": "postgres:" + password[1], "amqp": "guest:guest"}
	for _, url := range localServer.FindAllStringSubmatch(document, -1) {
		if want := accounts[url[1]]; url[2] != want {
			wrong = append(wrong, fmt.Sprintf("%s: %s: the server of docker-compose.yml wants %s", name, url[0], want))
		}
	}
	return wrong
}

var (
	makeTarget  = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
	quotedMake  = regexp.MustCompile("(?m)(?:`|^)make ([a-z][a-z-]*)")
	commandOfCI = regexp.MustCompile(`(?m)^part (make [a-z-]+)$`)
)

// checkTargets returns the make commands of a document that the Makefile does not have.
func checkTargets(name, document, makefile string) (wrong []string) {
	var targets []string
	for _, target := range makeTarget.FindAllStringSubmatch(makefile, -1) {
		targets = append(targets, target[1])
	}
	for _, quoted := range quotedMake.FindAllStringSubmatch(document, -1) {
		if !slices.Contains(targets, quoted[1]) && !strings.Contains(makefile, "\nbin/"+strings.TrimPrefix(quoted[1], "bin/")+":") && quoted[1] != "bin" {
			wrong = append(wrong, fmt.Sprintf("%s: there is no target for make %s", name, quoted[1]))
		}
	}
	return wrong
}

// checkContributing returns the commands of .ci/run that CONTRIBUTING.md does not name where it says what CI runs.
func checkContributing(contributing, run string) (wrong []string) {
	_, said, _ := strings.Cut(contributing, "\n\n")
	said, _, _ = strings.Cut(said, "\n\n")
	for _, command := range commandOfCI.FindAllStringSubmatch(run, -1) {
		if !strings.Contains(said, "`"+command[1]+"`") {
			wrong = append(wrong, "CONTRIBUTING.md: its first paragraph lacks `"+command[1]+"` of .ci/run")
		}
	}
	return wrong
}

var (
	goFile      = regexp.MustCompile("(?ms)^```go file=\\S+\n(.*?)^```$")
	statedLines = regexp.MustCompile(`(\d+) lines of Go`)
)

// checkTutorial compares the number of lines that the tutorial announces with those of its Go files, rounded to tens.
func checkTutorial(tutorial string) []string {
	lines := 0
	for _, file := range goFile.FindAllStringSubmatch(tutorial, -1) {
		lines += strings.Count(file[1], "\n")
	}
	want := fmt.Sprint((lines + 5) / 10 * 10)
	if stated := statedLines.FindStringSubmatch(tutorial); stated == nil || stated[1] != want {
		return []string{fmt.Sprintf("docs/tutorial-choreography.md: it has %d lines of Go, so it must announce %s lines of Go", lines, want)}
	}
	return nil
}

// readmeLines is how long README.md may be.
const readmeLines = 150

// composeTag matches the version of a server in docker-compose.yml.
var composeTag = regexp.MustCompile(`image: (postgres|rabbitmq):(\d+(?:\.\d+)?)`)

// checkReadmeFacts returns what README.md lacks: the versions that are tested, as other files name them.
func checkReadmeFacts(readme, gomod, compose, makefile string) (wrong []string) {
	if lines := strings.Count(readme, "\n"); lines > readmeLines {
		wrong = append(wrong, fmt.Sprintf("README.md: %d lines, want at most %d", lines, readmeLines))
	}
	_, goVersion, _ := strings.Cut(gomod, "\ngo ")
	goVersion, _, _ = strings.Cut(goVersion, ".0\n")
	_, postgres, _ := strings.Cut(makefile, "private servers of PostgreSQL PG=")
	postgres, _, _ = strings.Cut(postgres, ";")
	tested := []string{"Go | " + goVersion, "PostgreSQL | " + postgres, "watermill | " + requirements(gomod)["github.com/ThreeDotsLabs/watermill"]}
	for _, tag := range composeTag.FindAllStringSubmatch(compose, -1) {
		if tag[1] == "rabbitmq" {
			tested = append(tested, "RabbitMQ | "+tag[2]+" and ")
		}
	}
	for _, row := range tested {
		if !strings.Contains(readme, "| "+row) {
			wrong = append(wrong, fmt.Sprintf("README.md: the table of versions lacks %q", "| "+row))
		}
	}
	return wrong
}
