package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/internal/management"
	"github.com/sagamill/sagamill/internal/plaintext"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A finding is something at the broker that loses or delays messages of the topology.
type finding struct {
	Object  string `json:"object"`       // such as queue shop.ordered.pay
	Setting string `json:"setting"`      // what is set or wrong
	By      string `json:"by,omitempty"` // the policy or argument that sets it
	Effect  string `json:"effect"`
	Action  string `json:"action"`
}

// formatFinding returns f as a line.
func formatFinding(f finding) string {
	by := ""
	if f.By != "" {
		by = " by " + f.By
	}
	return fmt.Sprintf("%s: %s%s: %s; %s", f.Object, f.Setting, by, f.Effect, f.Action)
}

// nameQueue and nameExchange return the object of a finding.
func nameQueue(name string) string    { return "queue " + cli.FormatCell(name) }
func nameExchange(name string) string { return "exchange " + cli.FormatCell(name) }

// A report is what a check has found.
type report struct {
	findings  []finding
	unchecked []string // what the check could not look at
	queues    int
	exchanges int
}

func (r *report) add(f finding) { r.findings = append(r.findings, f) }

// A subscription is what one service has for one topic.
type subscription struct{ exchange, queue, dead string }

// listExpected returns the subscriptions of t, and the names of all exchanges of its topics.
func listExpected(t rabbitmq.Topology) (subscriptions []subscription, exchanges []string) {
	for _, s := range t.Services {
		for _, topic := range s.Listens {
			queue := t.Prefix + topic + "." + s.Name
			subscriptions = append(subscriptions, subscription{t.Prefix + topic, queue, queue + management.DeadSuffix})
		}
		for _, topic := range slices.Concat(s.Publishes, s.Listens) {
			exchanges = append(exchanges, t.Prefix+topic)
		}
	}
	slices.Sort(exchanges)
	return subscriptions, slices.Compact(exchanges)
}

func brokerCheck(ctx context.Context, c *cli.Call) error {
	f := addBrokerFlags(c)
	c.Flags.Lookup("topology").Usage += "; or what a service says at /topology"
	at := c.Flags.String("management", os.Getenv(cli.ManagementVariable), cli.ManagementUsage+"; without it, the command does not see policies, bindings and members")
	vhost := c.Flags.String("vhost", "", "virtual host, with -management; default: that of the URL in -management, or else that of -amqp, or /")
	asJSON := c.Flags.Bool("json", false, "print JSON, one line for each finding")
	if err := c.ParseFlags(); err != nil {
		return err
	}
	t, err := f.readCheckedTopology(c, true)
	if err != nil {
		return err
	}
	if subscriptions, exchanges := listExpected(t); len(subscriptions)+len(exchanges) == 0 {
		return fmt.Errorf("topology %s: its services neither publish nor listen to a topic", f.topology)
	}
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	var r *report
	switch {
	case *at != "":
		r, err = checkManagement(ctx, c, t, f, *at, *vhost)
	case *vhost != "":
		err = errors.New("-vhost is for -management; -amqp names its virtual host itself")
	default:
		r, err = checkAMQP(ctx, c, t, f)
	}
	if err != nil {
		return err
	}
	return printReport(c, r, *asJSON)
}

// printReport prints r. It returns an error if there are findings.
func printReport(c *cli.Call, r *report, asJSON bool) error {
	for _, f := range r.findings {
		if asJSON {
			if err := cli.PrintJSON(c.Stdout, f); err != nil {
				return err
			}
		} else if _, err := fmt.Fprintln(c.Stdout, cli.EscapeText(formatFinding(f))); err != nil {
			return err
		}
	}
	for _, what := range r.unchecked {
		fmt.Fprintln(c.Stderr, "sagamill: not checked:", what)
	}
	if n := len(r.findings); n > 0 {
		return errors.New(cli.FormatCount(n, "problems"))
	}
	if asJSON {
		return nil
	}
	_, err := fmt.Fprintf(c.Stdout, "no problems: %s, %s\n", cli.FormatCount(r.queues, "queues"), cli.FormatCount(r.exchanges, "exchanges"))
	return err
}

// checkAMQP looks which queues and exchanges are there, as any client can.
func checkAMQP(ctx context.Context, c *cli.Call, t rabbitmq.Topology, f *brokerFlags) (*report, error) {
	if err := f.findBroker(c); err != nil {
		return nil, err
	}
	parts, err := t.FindParts(ctx, f.amqp)
	if err != nil {
		return nil, err
	}
	r := &report{unchecked: []string{"policies, bindings and members of queues, which need -management"}}
	for i := range parts {
		p := &parts[i]
		switch {
		case p.Exchange:
			r.exchanges++
			if !p.Found {
				r.add(missingExchange(p.Name))
			}
			continue
		case !p.Found:
			r.add(missingQueue(p.Name))
		case strings.HasSuffix(p.Name, management.DeadSuffix) && p.Messages > 0:
			r.add(deadMessages(p.Name, p.Messages))
		}
		r.queues++
	}
	return r, nil
}

// checkManagement asks the management API at the URL at.
func checkManagement(ctx context.Context, c *cli.Call, t rabbitmq.Topology, f *brokerFlags, at, vhost string) (*report, error) {
	const source = "-management, or " + cli.ManagementVariable + " without it"
	api, err := management.ParseURL(at)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	if err := plaintext.HTTP(api.URL); err != nil && !c.AllowsPlaintext() {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	if vhost != "" {
		api.VHost = vhost
	} else if api.VHost == "" {
		if api.VHost, err = findVirtualHost(f.amqp); err != nil {
			return nil, fmt.Errorf("AMQP_URL: %w; correct it, or name the virtual host by -vhost", err)
		}
	}
	s, err := readState(ctx, api, t)
	if err != nil {
		return nil, fmt.Errorf("%w (virtual host %s)", err, cli.FormatCell(api.VHost))
	}
	return s.judge(), nil
}

// A state is what the management API says of a topology.
type state struct {
	vhost         string
	version       string
	subscriptions []subscription
	exchanges     []string
	queueOf       map[string]*management.Queue
	exchangeOf    map[string]*management.Exchange
	bound         map[string][]string // queues by exchange
	policies      map[string]map[string]any
	operators     map[string]map[string]any
	readPolicies  bool // policies and operators are known
	nodes         []string
	unchecked     []string
}

// maxQueues is how many queues of a virtual host the check reads.
const maxQueues = 100 * management.MaxPage

func readState(ctx context.Context, api *management.API, t rabbitmq.Topology) (*state, error) {
	s := &state{vhost: api.VHost, queueOf: map[string]*management.Queue{}, exchangeOf: map[string]*management.Exchange{}, bound: map[string][]string{}}
	s.subscriptions, s.exchanges = listExpected(t)
	var err error
	if s.version, err = api.ReadVersion(ctx); err != nil {
		return nil, err
	}
	queues, err := api.ListQueues(ctx, maxQueues)
	if err != nil {
		return nil, err
	}
	if len(queues) >= maxQueues {
		return nil, fmt.Errorf("there are more than %d queues, of which this command reads no more", maxQueues-1)
	}
	for i := range queues {
		s.queueOf[queues[i].Name] = &queues[i]
	}
	exchanges, err := api.ListExchanges(ctx)
	if err != nil {
		return nil, err
	}
	for i := range exchanges {
		s.exchangeOf[exchanges[i].Name] = &exchanges[i]
	}
	for _, name := range s.exchanges {
		if s.exchangeOf[name] == nil {
			continue
		}
		if s.bound[name], err = api.ListBoundQueues(ctx, name); err != nil {
			return nil, err
		}
	}
	return s, s.readRestricted(ctx, api)
}

// readRestricted reads what the API may refuse to a user who may read queues.
func (s *state) readRestricted(ctx context.Context, api *management.API) error {
	policies, err := api.ListPolicies(ctx, false)
	if err == nil {
		s.policies = definitionsByName(policies)
		policies, err = api.ListPolicies(ctx, true)
		s.operators = definitionsByName(policies)
	}
	switch {
	case err == nil:
		s.readPolicies = true
	case !management.IsRefused(err):
		return err
	}
	s.nodes, err = api.ListNodes(ctx)
	if management.IsRefused(err) {
		s.unchecked = append(s.unchecked, "members of queues, because the user needs the tag monitoring")
		return nil
	}
	return err
}

func definitionsByName(policies []management.Policy) map[string]map[string]any {
	all := map[string]map[string]any{}
	for _, p := range policies {
		all[p.Name] = p.Definition
	}
	return all
}

// atLeast reports whether the broker's version is major.minor or later. It is false if the version cannot be read.
func (s *state) atLeast(major, minor int) bool {
	parts := strings.SplitN(s.version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, errA := strconv.Atoi(parts[0])
	b, errB := strconv.Atoi(parts[1])
	return errA == nil && errB == nil && (a > major || a == major && b >= minor)
}
