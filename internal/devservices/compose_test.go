package devservices

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// composePorts are the ports at which servers are looked for, of the services that docker compose up starts without a profile.
var composePorts = map[string]string{"postgres": "5432", "rabbitmq": "5672", "redis": "6379"}

// exactTag is an image with a whole version: PostgreSQL's has two numbers, the others' have three.
var exactTag = regexp.MustCompile(`^(postgres:\d+\.\d+|[a-z]+:\d+\.\d+\.\d+)(-[a-z]+)?$`)

// The servers of the project's compose file are found by a run, and cost nothing while nobody asks for anything.
func TestComposeFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	services := parseCompose(string(text))
	if len(services) != 4 {
		t.Fatalf("services %q, want 4", slices.Sorted(maps.Keys(services)))
	}
	for name, lines := range services {
		if image := lines.value("image"); !exactTag.MatchString(image) {
			t.Errorf("%s: image %q has no exact tag", name, image)
		}
		ports := lines.items("ports")
		for _, port := range ports {
			if !strings.HasPrefix(port, "127.0.0.1:${SAGAMILL_") {
				t.Errorf("%s: port %q is not on the loopback address, or cannot be moved", name, port)
			}
		}
		if want, asked := composePorts[name]; asked && !slices.ContainsFunc(ports, func(p string) bool { return strings.HasSuffix(p, ":-"+want+"}:"+want) }) {
			t.Errorf("%s: ports %q, want %s at the port where servers are looked for", name, ports, want)
		}
		checkHealthCheck(t, name, lines)
		if profile := lines.value("profiles"); (profile != "") == (composePorts[name] != "") {
			t.Errorf("%s has the profiles %q: what is for tests only has one, and all else has none", name, profile)
		}
	}
	if got := services["postgres"].value("POSTGRES_PASSWORD"); !strings.Contains(strings.Join(usualPostgres(), " "), "postgres:"+got+"@") {
		t.Errorf("the superuser's password is %q, which no usual URL has", got)
	}
	if command := services["postgres"].value("command"); !strings.Contains(command, "max_connections=200") {
		t.Errorf("postgres runs %s: the tests need more connections", command)
	}
	for _, name := range []string{"rabbitmq", "redis"} {
		if slices.ContainsFunc(services[name], func(line string) bool { return strings.Contains(strings.ToLower(line), "pass") }) {
			t.Errorf("%s has another login than the image's", name)
		}
	}
}

// checkHealthCheck checks that a server is asked often while it starts, and seldom later.
func checkHealthCheck(t *testing.T, name string, lines composeLines) {
	t.Helper()
	for key, bounds := range map[string][2]time.Duration{
		"start_period": {30 * time.Second, 2 * time.Minute}, "start_interval": {time.Second, 2 * time.Second}, "interval": {30 * time.Second, time.Minute},
	} {
		got, err := time.ParseDuration(lines.value(key))
		if err != nil || got < bounds[0] || got > bounds[1] {
			t.Errorf("%s: %s is %v, want %v to %v (%v)", name, key, got, bounds[0], bounds[1], err)
		}
	}
}

// composeLines are the lines of one service.
type composeLines []string

// parseCompose returns the lines of each service. The file has one key a line, which is all of YAML that it needs.
func parseCompose(text string) map[string]composeLines {
	services, name := map[string]composeLines{}, ""
	_, text, _ = strings.Cut(text, "\nservices:\n")
	text, _, _ = strings.Cut(text, "\nvolumes:\n")
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(strings.TrimRight(line, "\n"), " # ")
		if found, ok := strings.CutPrefix(line, "  "); ok && !strings.HasPrefix(found, " ") {
			name = strings.TrimSuffix(found, ":")
		} else {
			services[name] = append(services[name], strings.TrimSpace(line))
		}
	}
	return services
}

// value returns what stands behind the key.
func (l composeLines) value(key string) string {
	for _, line := range l {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// items returns the list behind the key.
func (l composeLines) items(key string) (items []string) {
	i := slices.Index(l, key+":")
	for _, line := range l[i+1:] {
		item, ok := strings.CutPrefix(line, "- ")
		if !ok {
			break
		}
		items = append(items, strings.Trim(item, `"`))
	}
	return items
}
