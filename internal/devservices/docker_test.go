package devservices

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakeDocker writes a script that logs its arguments and runs body with them,
// and returns a composition that uses it.
func fakeDocker(t *testing.T, body string) (c composition, calls func() string) {
	t.Helper()
	dir := t.TempDir()
	log, docker := filepath.Join(dir, "calls"), filepath.Join(dir, "docker")
	script := "#!/bin/sh\necho \"$*\" >> " + log + "\n" + body
	writeScript(t, docker, script)
	r := &run{log: &bytes.Buffer{}}
	return composition{docker: docker, file: "f.yml", say: r.printLine}, func() string {
		content, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
}

// writeScript writes a script that can be run at once: what is forked while it is open for
// writing would keep it so, and nothing that is open for writing can be run.
func writeScript(t *testing.T, name, script string) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(name, []byte(script), 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCompose(t *testing.T) {
	t.Parallel()
	c, calls := fakeDocker(t, `case "$*" in *port*) echo 127.0.0.1:5433;; esac`)
	address, err := c.startContainer(t.Context(), "postgres", "5432")
	if address != "127.0.0.1:5433" || err != nil {
		t.Errorf("up = %q, %v; want the published address", address, err)
	}
	want := "info --format {{.ServerVersion}}\n" +
		"compose --file f.yml version\n" +
		"compose --file f.yml up --detach --wait postgres\n" +
		"compose --file f.yml port postgres 5432\n"
	if got := calls(); got != want {
		t.Errorf("docker was called with\n%swant\n%s", got, want)
	}
}

// An image is fetched only if the user allows it.
func TestComposeFetchesNothing(t *testing.T) {
	t.Parallel()
	c, calls := fakeDocker(t, `case "$*" in *port*) echo 127.0.0.1:5433;; esac`)
	c.noPull = true
	if _, err := c.startContainer(t.Context(), "postgres", "5432"); err != nil {
		t.Fatal(err)
	}
	if got := calls(); !strings.Contains(got, "up --detach --wait --pull never postgres\n") {
		t.Errorf("docker was called with\n%s", got)
	}
}

// A client binary without an engine does not count as docker: the way is skipped without a message.
func TestComposeWithoutEngine(t *testing.T) {
	t.Parallel()
	c, calls := fakeDocker(t, "exit 1")
	if _, err := c.startContainer(t.Context(), "postgres", "5432"); !errors.Is(err, errAbsent) {
		t.Errorf("up = %v, want %v", err, errAbsent)
	}
	if got := calls(); strings.Contains(got, "compose") {
		t.Errorf("docker was called with\n%s", got)
	}
}

// A port that is taken, an image that cannot be fetched: worth a line, since
// the user has an engine.
func TestComposeFails(t *testing.T) {
	t.Parallel()
	c, _ := fakeDocker(t, `case "$*" in *up*) echo port is already allocated; exit 1;; esac`)
	_, err := c.startContainer(t.Context(), "postgres", "5432")
	if err == nil || errors.Is(err, errAbsent) || !strings.Contains(err.Error(), "port is already allocated (SAGAMILL_POSTGRES_PORT takes another port than 5432)") {
		t.Errorf("up = %v, want the reason and the way out", err)
	}
}

// Compose refuses start_interval with an older engine. Then the user reads why another way is tried.
func TestComposeNeedsANewEngine(t *testing.T) {
	t.Parallel()
	for version, tooOld := range map[string]bool{"24.0.9": true, "5.4.0": true, "25.0.0": false, "29.1.2-rc.1": false, "unknown": false} {
		c, calls := fakeDocker(t, `case "$*" in info*) echo `+version+`;; *port*) echo 127.0.0.1:5433;; esac`)
		_, err := c.startContainer(t.Context(), "postgres", "5432")
		if (err != nil) != tooOld || errors.Is(err, errAbsent) || tooOld && !strings.Contains(err.Error(), "needs Docker Engine 25 or later, and this one is "+version) {
			t.Errorf("engine %s: %v", version, err)
		}
		if tooOld && strings.Contains(calls(), "compose") {
			t.Errorf("engine %s: docker was called with\n%s", version, calls())
		}
	}
}

// exactTag is an image with a whole version: PostgreSQL's has two numbers, the others' have three.
var exactTag = regexp.MustCompile(`^(postgres:\d+\.\d+|[a-z]+:\d+\.\d+\.\d+)(-[a-z]+)?$`)

// What the file says is what [run] asks for, and it costs nothing while nobody asks for anything.
func TestComposeFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(findCompose())
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
			t.Errorf("%s has the profiles %q: what a run brings up has none, and all else has one", name, profile)
		}
	}
	if got := services["postgres"].value("POSTGRES_PASSWORD"); got == "" || !strings.Contains(composePostgres, "postgres:"+got+"@") {
		t.Errorf("the superuser's password is %q, want that of %s", got, composePostgres)
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

func TestFindCompose(t *testing.T) {
	t.Parallel()
	file := findCompose()
	if filepath.Base(file) != composeFile || !fileExists(file) {
		t.Errorf("findCompose = %q, want the project's file", file)
	}
}
