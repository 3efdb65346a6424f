package devservices

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	engineTimeout  = 5 * time.Second // an engine that is there answers at once
	composeTimeout = 5 * time.Minute // images may have to be fetched
	composeFile    = "docker-compose.yml"

	// minEngine is the oldest Docker Engine that knows start_interval. Compose refuses the file with an older one.
	minEngine = 25
)

// composePostgres is a format of the URL of the file's PostgreSQL.
const composePostgres = "postgres://postgres:postgres@%s/postgres?sslmode=disable"

// composePorts are the ports of the services in the compose file that a run may bring up.
var composePorts = map[string]string{"postgres": "5432", "rabbitmq": "5672", "redis": "6379"}

// dockerWay uses a service of the compose file. url is a format of the service's address, with the login that the file
// has. A password there is no secret: the port is published on the loopback address only.
func (r *run) dockerWay(service, url string, probe func(context.Context, time.Duration, string) (string, error)) way {
	return way{"docker", func(ctx context.Context) (instance, error) {
		address, err := r.composeService(ctx, service)
		if err != nil {
			return instance{}, err
		}
		in := instance{url: fmt.Sprintf(url, address), shared: true}
		in.what, err = probe(ctx, envTimeout, in.url)
		return in, err
	}}
}

// composeService brings up one service of the project's compose file and returns the
// address of its port.
func (r *run) composeService(ctx context.Context, service string) (string, error) {
	docker, err := exec.LookPath("docker")
	if err != nil {
		return "", serviceAbsent("no docker")
	}
	file := findCompose()
	if file == "" {
		return "", serviceAbsent("no %s above the working directory", composeFile)
	}
	return composition{docker: docker, file: file, noPull: r.noInstall, say: r.printInstall}.startContainer(ctx, service, composePorts[service])
}

// A composition is the compose file and the program that brings it up.
type composition struct {
	docker, file string
	noPull       bool // images are not fetched
	say          func(string, ...any)
}

// startContainer brings up service and returns the address at which port is published. The
// service stays up after the run: containers are meant to be shared.
func (c composition) startContainer(ctx context.Context, service, port string) (string, error) {
	// A docker client without an engine is common.
	engine := program{path: c.docker, args: []string{"info", "--format", "{{.ServerVersion}}"}}
	version, err := engine.runProgram(ctx, engineTimeout)
	if err != nil {
		return "", serviceAbsent("no docker engine answers")
	}
	if err := checkEngine(version); err != nil {
		return "", err
	}
	if _, err := c.runCompose(ctx, engineTimeout, "version"); err != nil {
		return "", serviceAbsent("docker has no compose")
	}
	up := []string{"up", "--detach", "--wait"}
	if c.noPull {
		up = append(up, "--pull", "never")
	}
	c.say("docker compose up %s fetches its image if it is missing (%s=no forbids that); `docker compose down` stops it, and with -v removes its data", service, installVariable)
	if _, err := c.runCompose(ctx, composeTimeout, append(up, service)...); err != nil {
		return "", fmt.Errorf("%w (SAGAMILL_%s_PORT takes another port than %s)", err, strings.ToUpper(service), port)
	}
	address, err := c.runCompose(ctx, engineTimeout, "port", service, port)
	if err != nil {
		return "", err
	}
	if address = strings.TrimSpace(address); address == "" {
		return "", fmt.Errorf("compose service %s publishes no port %s", service, port)
	}
	return address, nil
}

// checkEngine returns an error if the engine is too old for the compose file. A version that it cannot read passes:
// compose itself decides then.
func checkEngine(version string) error {
	major := 0
	if _, err := fmt.Sscanf(version, "%d.", &major); err == nil && major < minEngine {
		return fmt.Errorf("%s needs Docker Engine %d or later, and this one is %s", composeFile, minEngine, strings.TrimSpace(version))
	}
	return nil
}

func (c composition) runCompose(ctx context.Context, timeout time.Duration, args ...string) (string, error) {
	return program{path: c.docker, args: append([]string{"compose", "--file", c.file}, args...)}.runProgram(ctx, timeout)
}

// findCompose returns the compose file of the module in the working directory. An installed example, for
// instance, has none.
func findCompose() string {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		module, readErr := os.ReadFile(filepath.Join(dir, "go.mod"))
		if readErr == nil && strings.HasPrefix(string(module), "module github.com/sagamill/sagamill\n") {
			if file := filepath.Join(dir, composeFile); fileExists(file) {
				return file
			}
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return ""
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
