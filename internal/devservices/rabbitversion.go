package devservices

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rabbitVariable chooses the version of RabbitMQ, as 4.3.
const rabbitVariable = "SAGAMILL_RABBITMQ"

// ErrNoRabbitMQ reports that this machine cannot have the version of RabbitMQ that SAGAMILL_RABBITMQ asks for.
var ErrNoRabbitMQ = errors.New("devservices: the RabbitMQ that is asked for cannot be had")

// RabbitVersion returns the version of RabbitMQ that SAGAMILL_RABBITMQ asks for, as 4.3, and "" if any will do.
func RabbitVersion() (string, error) {
	version := os.Getenv(rabbitVariable)
	if version != "" && !regexp.MustCompile(`^[0-9]+\.[0-9]+$`).MatchString(version) {
		return "", fmt.Errorf("devservices: %s: %q is no version, as 4.3, 4.0 or 3.10", rabbitVariable, version)
	}
	return version, nil
}

// A RabbitMQ is where the programs of a server are.
type RabbitMQ struct {
	Server string // its start script

	usr string // what its programs see in the place of /usr; "": this machine's
}

// FindRabbitMQ returns the RabbitMQ that private servers are started from: of the version that SAGAMILL_RABBITMQ asks for,
// installed or unpacked by an earlier [Start]. It fetches nothing. The error is [ErrNoRabbitMQ] if there is none.
func FindRabbitMQ() (*RabbitMQ, error) {
	version, err := RabbitVersion()
	if err != nil {
		return nil, err
	}
	rabbit, err := findRabbitMQ(version)
	if errors.Is(err, errAbsent) {
		err = fmt.Errorf("%w: %w", ErrNoRabbitMQ, err)
	}
	return rabbit, err
}

func findRabbitMQ(version string) (*RabbitMQ, error) {
	server, has := rabbitServerPath(), rabbitVersion("/usr")
	if server != "" && (has == "" || isVersion(has, version)) {
		return &RabbitMQ{Server: server}, nil
	}
	if tree, err := treeOf(version); err == nil && checkTreeHost() == nil && isVersion(rabbitVersion(tree.usr()), version) {
		return &RabbitMQ{Server: rabbitServers[0], usr: tree.usr()}, nil
	}
	if version == "" {
		return nil, serviceAbsent("no rabbitmq-server on this machine")
	}
	return nil, serviceAbsent("no rabbitmq-server %s on this machine, which has %s", version, cmp.Or(has, "none"))
}

// Program returns the path of one of its programs, such as epmd, and "" if it has none of that name.
func (m *RabbitMQ) Program(name string) string {
	if m.usr != "" {
		if _, err := os.Lstat(filepath.Join(m.usr, "bin", name)); err != nil {
			return ""
		}
		return filepath.Join("/usr/bin", name)
	}
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	// Erlang's own programs are not always on PATH.
	for _, pattern := range []string{"/usr/lib/erlang/erts-*/bin", "/usr/local/lib/erlang/erts-*/bin", "/opt/homebrew/lib/erlang/erts-*/bin"} {
		if found, _ := filepath.Glob(filepath.Join(pattern, name)); len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// Fork calls start, which starts one of its programs and waits for its end, on a thread whose children see what the
// program needs.
func (m *RabbitMQ) Fork(start func() error) error { return forkThread(m.usr, start) }

// rabbitServers are the usual start scripts. Debian's script on PATH insists on its account, so the script that it calls
// comes first.
var rabbitServers = []string{
	"/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/rabbitmq/sbin/rabbitmq-server", "/opt/homebrew/sbin/rabbitmq-server", "/usr/local/sbin/rabbitmq-server",
}

// rabbitServerPath returns this machine's start script, and "" if there is none.
func rabbitServerPath() string {
	if i := slices.IndexFunc(rabbitServers, executable); i >= 0 {
		return rabbitServers[i]
	}
	path, _ := exec.LookPath("rabbitmq-server") // "" after an error
	return path
}

// rabbitVersion returns the version of Debian's RabbitMQ below usr, "" if there is none.
func rabbitVersion(usr string) string {
	const prefix = "rabbitmq_server-"
	found, _ := filepath.Glob(filepath.Join(usr, "lib/rabbitmq/lib", prefix+"*"))
	if len(found) == 0 {
		return ""
	}
	return strings.TrimPrefix(filepath.Base(found[0]), prefix)
}

// isVersion reports whether version, as 4.3.6, is of the release that is asked for, as 4.3. Any is if none is.
func isVersion(version, asked string) bool {
	return asked == "" || strings.HasPrefix(version, asked+".")
}

// CheckRabbitVersion returns an error if the server of a connection is not of the version that SAGAMILL_RABBITMQ asks for.
func CheckRabbitVersion(connection *amqp.Connection) error {
	version, err := RabbitVersion()
	if has := fmt.Sprint(connection.Properties["version"]); err == nil && !isVersion(has, version) {
		err = fmt.Errorf("%s=%s is %w: the server is version %s", rabbitVariable, version, errRefused, has)
	}
	return err
}
