package demo

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/rabbitmq"
)

// A Program is an example. It does not change.
type Program struct {
	Name     string   // of the command, such as order-saga
	Noun     string   // names the things that its demo places, such as order
	Services []string // the first is the one that clients talk to

	// Listens has the topics of each service's queues, and Publishes the topics that it
	// publishes to. A process declares the queues of what its services publish before its relays
	// publish, and its consumers declare their own. So services start in any order.
	Listens, Publishes map[string][]string

	Schemas  map[string]string // of each service
	Tables   map[string]fs.FS  // migrations of each service's own tables
	MaxConns int32             // in each service's pool, unless its URL has pool_max_conns
}

// A Command is what a program does under its first argument.
type Command func(args []string) error

// Run runs the command that args names, and returns the exit code: 0 is success, 1 a failure, 2
// wrong usage.
func (p *Program) Run(args []string, commands map[string]Command, usage string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	if slices.Contains([]string{"help", "-h", "-help", "--help"}, args[0]) {
		fmt.Fprint(stdout, usage)
		return 0
	}
	command, known := commands[args[0]]
	if !known {
		fmt.Fprintf(stderr, "%s: there is no command %q\n%s", p.Name, args[0], usage)
		return 2
	}
	err := command(args[1:])
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
	if setting := new(SettingError); errors.As(err, &setting) {
		return 2
	}
	return 1
}

// Topology returns what the services publish and listen to.
func (p *Program) Topology(namespace string) rabbitmq.Topology {
	t := rabbitmq.Topology{Prefix: namespace + "."}
	for _, service := range slices.Sorted(maps.Keys(p.Listens)) {
		t.Services = append(t.Services, rabbitmq.Service{Name: service, Publishes: p.Publishes[service], Listens: p.Listens[service]})
	}
	return t
}

// demoTarget returns the target of make that runs the demo.
func (p *Program) demoTarget() string {
	if p.Noun == "order" {
		return "demo"
	}
	return "demo-" + p.Noun
}

// snakeName returns the name as it is in names of databases and variables.
func (p *Program) snakeName() string { return strings.ReplaceAll(p.Name, "-", "_") }

// A SettingError names a setting that cannot be used.
type SettingError struct{ name, problem string }

// Error names the setting and what is wrong with it.
func (e *SettingError) Error() string { return e.name + ": " + e.problem }

// BadSetting returns a [SettingError].
func BadSetting(name, format string, args ...any) error {
	return &SettingError{name, fmt.Sprintf(format, args...)}
}
