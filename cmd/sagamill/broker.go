package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/brokerurls"
	"github.com/sagamill/sagamill/internal/plaintext"
	"github.com/sagamill/sagamill/internal/strictjson"
	"github.com/sagamill/sagamill/rabbitmq"
)

// maxTopology is how long a topology may be, in bytes.
const maxTopology = 1 << 20

func brokerCommands() []command {
	return []command{
		{"broker permissions", "print what makes a user of RabbitMQ for each service", brokerPermissions},
		{"broker declare", "declare the exchanges and queues of a topology", brokerDeclare},
		{"broker delete", "delete them, unless a queue holds messages or is consumed from", brokerDelete},
	}
}

// readTopology reads the file called name, or standard input for -.
func (c *call) readTopology(name string) (t rabbitmq.Topology, err error) {
	if name == "" {
		return t, errors.New(`say which with -topology: a file with {"prefix": "shop.", "services": [{"name": "order", "publishes": ["…"], "listens": ["…"]}]}`)
	}
	in := c.stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return t, err
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxTopology))
	if err == nil {
		err = strictjson.Unmarshal(text, &t)
	}
	if err == nil { // what is mistyped would be as if it were not there
		known := json.NewDecoder(bytes.NewReader(text))
		known.DisallowUnknownFields()
		err = known.Decode(&rabbitmq.Topology{})
	}
	if err == nil && len(t.Services) == 0 {
		err = errors.New("there are no services in it")
	}
	if err != nil {
		return t, fmt.Errorf("topology %s: %w", name, err)
	}
	return t, nil
}

// brokerPermissions prints commands and no passwords: those that make the users ask
// for one each, and are comments, because a shell that reads this would be asked.
func brokerPermissions(_ context.Context, c *call) error {
	name := c.flags.String("topology", "", "file that says what each service publishes and listens to; - for standard input")
	vhost := c.flags.String("vhost", "", "virtual host of the permissions; default: that of AMQP_URL, or / without one")
	if err := c.parse(); err != nil {
		return err
	}
	if *vhost == "" {
		var err error
		if *vhost, err = vhostOf(os.Getenv("AMQP_URL")); err != nil {
			return fmt.Errorf("AMQP_URL: %w; mend it, or name the virtual host by -vhost", err)
		}
	}
	t, err := c.readTopology(*name)
	if err != nil {
		return err
	}
	all, err := t.Permissions()
	if err != nil {
		return err
	}
	fmt.Fprintln(c.stdout, "# By hand, once: each asks for a password.")
	for _, p := range all {
		fmt.Fprintln(c.stdout, "#   rabbitmqctl add_user", quoted(p.User))
	}
	fmt.Fprintln(c.stdout, "#   rabbitmqctl delete_user guest   # unless others use it")
	fmt.Fprintln(c.stdout, "# As often as you like:")
	for _, p := range all {
		fmt.Fprintln(c.stdout, "rabbitmqctl set_permissions --vhost", quoted(*vhost), quoted(p.User), quoted(p.Configure), quoted(p.Write), quoted(p.Read))
		fmt.Fprintln(c.stdout, "rabbitmqctl set_user_limits", quoted(p.User), quoted(fmt.Sprintf(`{"max-connections":%d,"max-channels":%d}`, p.MaxConnections, p.MaxChannels)))
	}
	return nil
}

// vhostOf returns the virtual host of a list of URLs, all of which have the same. It is / where
// there is no list, or none in its URLs.
func vhostOf(list string) (string, error) {
	if list == "" {
		return "/", nil
	}
	if _, err := rabbitmq.NewConfig(list, "vhost", nil); err != nil { // it checks all of them, and repeats none
		return "", err
	}
	u, err := amqp.ParseURI(brokerurls.Split(list)[0])
	return u.Vhost, err
}

// quoted returns s as one word of a shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// parseBroker reads the command line of a command that asks the broker about a
// topology: its URL, and the topology with names that can be used.
func (c *call) parseBroker() (at string, t rabbitmq.Topology, err error) {
	name := c.flags.String("topology", "", "file that says what each service publishes and listens to; - for standard input")
	c.flags.StringVar(&at, "amqp", os.Getenv("AMQP_URL"), "URL of RabbitMQ, or several with commas between them; default: AMQP_URL")
	if err := c.parse(); err != nil {
		return "", t, err
	}
	if at == "" {
		return "", t, errors.New("no broker: give -amqp or set AMQP_URL")
	}
	if err := plaintext.Broker(at); err != nil && !*c.allowPlaintext {
		return "", t, fmt.Errorf("-amqp, or AMQP_URL without it: %w", err)
	}
	if t, err = c.readTopology(*name); err == nil {
		_, err = t.Permissions() // which looks at the names
	}
	return at, t, err
}

func brokerDeclare(ctx context.Context, c *call) error {
	at, t, err := c.parseBroker()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for _, s := range t.Services {
		cfg, err := rabbitmq.NewConfig(at, s.Name, &rabbitmq.ConfigOptions{Prefix: t.Prefix, SingleActiveConsumer: s.SingleActiveConsumer})
		if err != nil {
			return err
		}
		if err := rabbitmq.DeclareTopology(ctx, cfg, s.Listens...); err != nil {
			return err
		}
		fmt.Fprintf(c.stdout, "service %s listens to %s\n", cell(s.Name), amount(len(s.Listens), "topics"))
	}
	return nil
}

func brokerDelete(ctx context.Context, c *call) error {
	opts := &rabbitmq.DeleteOptions{}
	c.flags.BoolVar(&opts.Force, "force", false, "delete queues with the messages that they hold, and under their consumers")
	c.flags.BoolVar(&opts.DryRun, "n", false, "say what would be done, and do nothing")
	c.flags.BoolVar(&opts.DryRun, "dry-run", false, "as -n")
	at, t, err := c.parseBroker()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
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
			fmt.Fprintln(c.stdout, fate(p, opts.DryRun))
		} else if p.Shared {
			fmt.Fprintf(c.stdout, "left exchange %s: queues of others are bound to it\n", cell(p.Name))
		}
	}
	if errors.Is(err, rabbitmq.ErrInUse) {
		return fmt.Errorf("%w: stop the services, let them empty their queues, or delete messages and all with -force", err)
	}
	if err == nil && found == 0 {
		fmt.Fprintln(c.stdout, "there is nothing of it")
	}
	return err
}

// fate says what has been done to p, or would be.
func fate(p *rabbitmq.Part, dry bool) string {
	did, kind, with := "deleted", "queue", ""
	if dry {
		did = "would delete"
	}
	if p.Exchange {
		kind = "exchange"
	}
	if p.InUse() {
		with = " with " + amount(p.Messages, "messages") + " under " + amount(p.Consumers, "consumers")
	}
	return did + " " + kind + " " + cell(p.Name) + with
}
