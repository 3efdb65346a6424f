// Package broker has the commands on the exchanges, queues and users of a topology.
package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/sagamill/sagamill/internal/brokerurls"
	"github.com/sagamill/sagamill/internal/plaintext"
	"github.com/sagamill/sagamill/internal/strictjson"
	"github.com/sagamill/sagamill/rabbitmq"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/topology"
)

// maxTopology is how long a topology may be, in bytes.
const maxTopology = 1 << 20

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{
		{Words: "broker permissions", About: "print the rabbitmqctl commands that give each service its permissions in RabbitMQ", Run: brokerPermissions},
		{Words: "broker declare", About: "declare the exchanges and queues of a topology", Run: brokerDeclare},
		{Words: "broker check", About: "print what is missing of a topology, and which policies of RabbitMQ lose or delay its messages; exit with 1 if anything is found", Run: brokerCheck},
		{Words: "broker delete", About: "delete the exchanges and queues of a topology; without -force, delete nothing if one of the queues holds messages or has a consumer", Run: brokerDelete},
	}
}

// topologyForm shows what a file with a topology looks like.
const topologyForm = `{"prefix": "shop.", "services": [{"name": "order", "publishes": ["…"], "listens": ["…"]}]}`

// readTopology reads the file called name, or standard input for -. If described is true, the file may be the
// description of a service instead.
func readTopology(c *cli.Call, name string, described bool) (t rabbitmq.Topology, err error) {
	if name == "" {
		return t, errors.New("say which with -topology: a file with " + topologyForm)
	}
	in := c.Stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return t, err
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxTopology))
	var service topology.Service
	if described && err == nil && json.Unmarshal(text, &service) == nil && service.Name != "" {
		return topologyOf(&service), nil
	}
	if err == nil {
		err = strictjson.Unmarshal(text, &t)
	}
	if err == nil { // Unmarshal ignores mistyped members
		known := json.NewDecoder(bytes.NewReader(text))
		known.DisallowUnknownFields()
		if err = known.Decode(&rabbitmq.Topology{}); err != nil {
			err = fmt.Errorf("%w: it is not of the form %s; what a service says at /topology is for sagamill broker check, broker delete and topology asyncapi", err, topologyForm)
		}
	}
	if err == nil && len(t.Services) == 0 {
		err = errors.New("there are no services in it")
	}
	if err != nil {
		return t, fmt.Errorf("topology %s: %w", name, err)
	}
	return t, nil
}

// topologyOf returns the topology of a service that has described itself. It is not for permissions, because a
// service need not describe all that it publishes. It is not for declarations either: a description lacks
// SingleActiveConsumer.
func topologyOf(s *topology.Service) rabbitmq.Topology {
	of := rabbitmq.Service{Name: s.Name}
	publish := func(messages ...topology.Message) {
		for _, m := range messages {
			of.Publishes = append(of.Publishes, m.Topic)
		}
	}
	publish(s.Emits...)
	for _, step := range s.Steps {
		of.Listens = append(of.Listens, step.Action.Topic)
		if step.Compensation != nil {
			of.Listens = append(of.Listens, step.Compensation.Topic)
		}
		publish(step.Emits...)
	}
	for _, v := range s.Sagas {
		of.Listens = append(of.Listens, saga.Topic(v.Name))
		for _, command := range v.Commands {
			if command.Message != nil {
				publish(*command.Message)
			}
		}
	}
	for _, topics := range []*[]string{&of.Publishes, &of.Listens} {
		slices.Sort(*topics)
		*topics = slices.DeleteFunc(slices.Compact(*topics), func(topic string) bool { return topic == "" })
	}
	return rabbitmq.Topology{Prefix: s.Prefix, Services: []rabbitmq.Service{of}}
}

// brokerPermissions prints commands without passwords. The commands that make users ask for a
// password each. They are printed as comments, because a shell cannot answer.
func brokerPermissions(_ context.Context, c *cli.Call) error {
	name := c.Flags.String("topology", "", "file that lists the topics that each service publishes and listens to; - means standard input")
	vhost := c.Flags.String("vhost", "", "virtual host of the permissions; default: the virtual host in the environment variable AMQP_URL, or / if this variable is not set or has no virtual host")
	if err := c.ParseFlags(); err != nil {
		return err
	}
	if *vhost == "" {
		var err error
		if *vhost, err = findVirtualHost(os.Getenv("AMQP_URL")); err != nil {
			return fmt.Errorf("AMQP_URL: %w; correct it, or name the virtual host by -vhost", err)
		}
	}
	t, err := readTopology(c, *name, false)
	if err != nil {
		return err
	}
	all, err := t.Permissions()
	if err != nil {
		return err
	}
	fmt.Fprintln(c.Stdout, "# By hand, once: each asks for a password.")
	for _, p := range all {
		fmt.Fprintln(c.Stdout, "#   rabbitmqctl add_user", quoteShell(p.User))
	}
	fmt.Fprintln(c.Stdout, "#   rabbitmqctl delete_user guest   # unless others use it")
	fmt.Fprintln(c.Stdout, "# As often as you like:")
	for _, p := range all {
		fmt.Fprintln(c.Stdout, "rabbitmqctl set_permissions --vhost", quoteShell(*vhost), quoteShell(p.User), quoteShell(p.Configure), quoteShell(p.Write), quoteShell(p.Read))
		fmt.Fprintln(c.Stdout, "rabbitmqctl set_user_limits", quoteShell(p.User), quoteShell(fmt.Sprintf(`{"max-connections":%d,"max-channels":%d}`, p.MaxConnections, p.MaxChannels)))
	}
	return nil
}

// findVirtualHost returns the virtual host of a list of URLs, which all have the same. Without a list,
// or without a virtual host in its URLs, it is /.
func findVirtualHost(list string) (string, error) {
	if list == "" {
		return "/", nil
	}
	if _, err := rabbitmq.NewConfig(list, "vhost", nil); err != nil { // checks all URLs; its error quotes none
		return "", err
	}
	u, err := amqp.ParseURI(brokerurls.Split(list)[0])
	return u.Vhost, err
}

// quoteShell returns s as one word of a shell.
func quoteShell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// brokerFlags say which topology a command is about, and where the broker is.
type brokerFlags struct{ topology, amqp string }

func addBrokerFlags(c *cli.Call) *brokerFlags {
	f := &brokerFlags{}
	c.Flags.StringVar(&f.topology, "topology", "", "file that lists the topics that each service publishes and listens to; - means standard input")
	c.Flags.StringVar(&f.amqp, "amqp", os.Getenv("AMQP_URL"), "URL of RabbitMQ, or several URLs separated by commas; default: the environment variable AMQP_URL")
	return f
}

// findBroker sets the broker's URL if the command line has none.
func (f *brokerFlags) findBroker(c *cli.Call) error {
	if err := c.FindBroker(&f.amqp); err != nil {
		return err
	}
	if err := plaintext.Broker(f.amqp); err != nil && !c.AllowsPlaintext() {
		return fmt.Errorf("-amqp, or AMQP_URL without it: %w", err)
	}
	return nil
}

// readCheckedTopology returns the topology after a check of its names. described is that of [readTopology].
func (f *brokerFlags) readCheckedTopology(c *cli.Call, described bool) (rabbitmq.Topology, error) {
	t, err := readTopology(c, f.topology, described)
	if err == nil {
		_, err = t.Permissions() // checks the names
	}
	return t, err
}

// parseBroker reads the command line of a command that asks the broker about a topology. It returns
// the broker's URL, and the topology. described is that of [readTopology].
func parseBroker(c *cli.Call, described bool) (at string, t rabbitmq.Topology, err error) {
	f := addBrokerFlags(c)
	if err := c.ParseFlags(); err != nil {
		return "", t, err
	}
	if err := f.findBroker(c); err != nil {
		return "", t, err
	}
	t, err = f.readCheckedTopology(c, described)
	return f.amqp, t, err
}

func brokerDeclare(ctx context.Context, c *cli.Call) error {
	at, t, err := parseBroker(c, false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	for _, s := range t.Services {
		cfg, err := rabbitmq.NewConfig(at, s.Name, &rabbitmq.ConfigOptions{Prefix: t.Prefix, SingleActiveConsumer: s.SingleActiveConsumer})
		if err != nil {
			return err
		}
		if err := rabbitmq.DeclareTopology(ctx, cfg, s.Listens...); err != nil {
			return err
		}
		fmt.Fprintf(c.Stdout, "service %s listens to %s\n", cli.FormatCell(s.Name), cli.FormatCount(len(s.Listens), "topics"))
	}
	return nil
}

func brokerDelete(ctx context.Context, c *cli.Call) error {
	opts := &rabbitmq.DeleteOptions{}
	c.Flags.BoolVar(&opts.Force, "force", false, "delete also queues that hold messages or have consumers; the messages are deleted too")
	c.Flags.BoolVar(&opts.DryRun, "n", false, "print what the command would do, and change nothing")
	c.Flags.BoolVar(&opts.DryRun, "dry-run", false, "the same as -n")
	at, t, err := parseBroker(c, true)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	parts, err := t.Delete(ctx, at, opts)
	found := 0
	for i := range parts {
		p := &parts[i]
		if !p.Found {
			continue
		}
		found++
		if p.Deleted || opts.DryRun && err == nil {
			fmt.Fprintln(c.Stdout, formatPart(p, opts.DryRun))
		} else if p.Shared {
			fmt.Fprintf(c.Stdout, "left exchange %s: queues of others are bound to it\n", cli.FormatCell(p.Name))
		}
	}
	if errors.Is(err, rabbitmq.ErrInUse) {
		return fmt.Errorf("%w: stop the services, let them empty their queues, or delete messages and all with -force", err)
	}
	if err == nil && found == 0 {
		fmt.Fprintln(c.Stdout, "there is nothing of it")
	}
	return err
}

// formatPart describes the deletion of p, or the one that a dry run would do.
func formatPart(p *rabbitmq.Part, dry bool) string {
	did, kind, with := "deleted", "queue", ""
	if dry {
		did = "would delete"
	}
	if p.Exchange {
		kind = "exchange"
	}
	if p.InUse() {
		with = " with " + cli.FormatCount(p.Messages, "messages") + " under " + cli.FormatCount(p.Consumers, "consumers")
	}
	return did + " " + kind + " " + cli.FormatCell(p.Name) + with
}
