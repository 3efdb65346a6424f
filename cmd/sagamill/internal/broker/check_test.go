package broker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
)

type object = map[string]any

// A fakeAPI is a management API of a broker with one exchange, one queue and its dead-letter queue.
type fakeAPI struct {
	version                      string
	exchange, queue, dead        object
	exchanges, queues            []object
	bound                        []object
	policies, operators          []object // nil: the user may not read them
	nodes                        []object // nil: the user may not read them
	refusesAll, unknown, foreign bool
}

func newFakeAPI() *fakeAPI {
	arguments := func(limit int) object {
		return object{"x-queue-type": "quorum", "x-delivery-limit": limit, "x-consumer-disconnected-timeout": 1000, "x-overflow": "reject-publish"}
	}
	nodes := []string{"a", "b", "c"}
	f := &fakeAPI{version: "4.3.0", policies: []object{}, operators: []object{}, nodes: []object{{"name": "a"}, {"name": "b"}, {"name": "c"}}}
	f.exchange = object{"name": "shop.ordered", "type": "fanout", "arguments": object{}}
	f.queue = object{"name": "shop.ordered.pay", "type": "quorum", "arguments": arguments(1000), "members": nodes, "online": nodes, "messages": 0}
	f.queue["arguments"].(object)["x-dead-letter-exchange"] = ""
	f.queue["arguments"].(object)["x-dead-letter-routing-key"] = "shop.ordered.pay.dead"
	f.queue["arguments"].(object)["x-dead-letter-strategy"] = "at-least-once"
	f.dead = object{"name": "shop.ordered.pay.dead", "type": "quorum", "arguments": arguments(1 << 30), "members": nodes, "online": nodes, "messages": 0}
	f.exchanges, f.queues = []object{f.exchange}, []object{f.queue, f.dead}
	f.bound = []object{{"destination": "shop.ordered.pay", "destination_type": "queue"}}
	return f
}

// setPolicy makes a policy apply to an exchange or a queue.
func (f *fakeAPI) setPolicy(to object, name string, definition object) {
	f.policies = append(f.policies, object{"name": name, "definition": definition})
	to["policy"], to["effective_policy_definition"] = name, definition
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	if f.refusesAll || user != "watch" || password != "s3cr3t" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if f.foreign {
		fmt.Fprint(w, "<html>")
		return
	}
	answer := func(v any, allowed bool) {
		if !allowed {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(v)
	}
	// A page has one element, so that every list has several pages.
	page := func(all []object) {
		n, _ := strconv.Atoi(r.URL.Query().Get("page"))
		items := []object{}
		if n >= 1 && n <= len(all) {
			items = all[n-1 : n]
		}
		answer(object{"items": items, "page_count": len(all)}, true)
	}
	path, inVHost := strings.CutSuffix(r.URL.EscapedPath(), "/my%2Fhost")
	path, ofExchange := strings.CutSuffix(path, "/my%2Fhost/shop.ordered/bindings/source")
	switch {
	case path == "/api/overview":
		answer(object{"rabbitmq_version": f.version}, true)
	case path == "/api/nodes":
		answer(f.nodes, f.nodes != nil)
	case f.unknown:
		w.WriteHeader(http.StatusNotFound)
	case path == "/api/exchanges" && ofExchange:
		answer(f.bound, true)
	case path == "/api/queues" && inVHost:
		page(f.queues)
	case path == "/api/exchanges" && inVHost:
		page(f.exchanges)
	case path == "/api/policies" && inVHost:
		answer(f.policies, f.policies != nil)
	case path == "/api/operator-policies" && inVHost:
		answer(f.operators, f.operators != nil)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// check runs the command on f and returns what it prints.
func (f *fakeAPI) check(t *testing.T, flags ...string) (out, complaint string, err error) {
	t.Helper()
	server := httptest.NewServer(f)
	defer server.Close()
	return runCheck(t, append(flags, "-management", strings.Replace(server.URL, "http://", "http://watch:s3cr3t@", 1)+"/my%2Fhost")...)
}

func runCheck(t *testing.T, flags ...string) (out, complaint string, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "topology.json")
	const text = `{"prefix": "shop.", "services": [{"name": "order", "publishes": ["ordered"]}, {"name": "pay", "listens": ["ordered"]}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	all := Commands()
	command := all[slices.IndexFunc(all, func(c cli.Command) bool { return c.Words == "broker check" })]
	var stdout, stderr bytes.Buffer
	err = cli.NewCall(command, append([]string{"-topology", file}, flags...), &stdout, &stderr).RunCommand(t.Context())
	if strings.Contains(stdout.String()+stderr.String()+fmt.Sprint(err), "s3cr3t") {
		t.Errorf("the password is printed: %s %s %v", stdout.String(), stderr.String(), err)
	}
	return stdout.String(), stderr.String(), err
}

func TestCheckFindsWhatLosesMessages(t *testing.T) {
	t.Parallel()
	const (
		exchange = "exchange shop.ordered: "
		queue    = "queue shop.ordered.pay: "
		dead     = "queue shop.ordered.pay.dead: "
		narrow   = " from the policy, or change its pattern so that it does not match"
	)
	argumentsOf := func(q object) object { return q["arguments"].(object) }
	for name, tt := range map[string]struct {
		change func(*fakeAPI)
		want   []string // without the newlines
	}{
		"nothing":                     {func(*fakeAPI) {}, nil},
		"a policy that loses nothing": {func(f *fakeAPI) { f.setPolicy(f.queue, "p", object{"queue-leader-locator": "balanced"}) }, nil},
		"a limit that refuses":        {func(f *fakeAPI) { f.setPolicy(f.queue, "p", object{"max-length": 9, "overflow": "reject-publish"}) }, nil},
		"a long consumer timeout":     {func(f *fakeAPI) { f.setPolicy(f.queue, "p", object{"consumer-timeout": 7200000}) }, nil},
		"a policy weaker than an argument": {func(f *fakeAPI) {
			f.setPolicy(f.queue, "p", object{"dead-letter-exchange": "x", "delivery-limit": 5000})
		}, nil},
		"an argument about disconnections":    {func(f *fakeAPI) { f.setPolicy(f.queue, "p", object{"consumer-disconnected-timeout": 90000}) }, nil},
		"an old broker without this argument": {func(f *fakeAPI) { f.version = "4.2.9"; delete(argumentsOf(f.queue), "x-consumer-disconnected-timeout") }, nil},
		"message-ttl": {func(f *fakeAPI) { f.setPolicy(f.queue, "ttl", object{"message-ttl": 30000}) },
			[]string{queue + "message-ttl 30000 by policy ttl: messages that wait longer than 30s are moved to shop.ordered.pay.dead, and no service handles them; remove message-ttl" + narrow}},
		"message-ttl of the dead-letter queue": {func(f *fakeAPI) { f.setPolicy(f.dead, "ttl", object{"message-ttl": 30000}) },
			[]string{dead + "message-ttl 30000 by policy ttl: messages that wait longer than 30s are lost; remove message-ttl" + narrow}},
		"message-ttl of an operator policy": {func(f *fakeAPI) {
			f.operators = []object{{"name": "op", "definition": object{"message-ttl": 1000}}}
			f.setPolicy(f.queue, "p", object{"message-ttl": 2000})
			f.queue["operator_policy"], f.queue["effective_policy_definition"] = "op", object{"message-ttl": 1000}
		}, []string{queue + "message-ttl 1000 by operator policy op: messages that wait longer than 1s are moved to shop.ordered.pay.dead, and no service handles them; remove message-ttl" + narrow}},
		"message-ttl of an argument": {func(f *fakeAPI) { argumentsOf(f.queue)["x-message-ttl"] = 1000 },
			[]string{queue + "message-ttl 1000 by its argument: messages that wait longer than 1s are moved to shop.ordered.pay.dead, and no service handles them; delete the queue when it is empty and run sagamill broker declare"}},
		"policies that the user may not read": {func(f *fakeAPI) {
			f.setPolicy(f.queue, "p", object{"expires": 3600000})
			f.queue["operator_policy"], f.exchange["policy"], f.policies = "op", "ae", nil
		}, []string{
			exchange + "is changed by policy ae: the user may not read whether it has an alternate-exchange; look at it with rabbitmqctl list_policies",
			queue + "expires 3600000 by policy p or operator policy op: RabbitMQ deletes the queue with its messages when no consumer has used it for 1h0m; remove expires" + narrow,
		}},
		"expires": {func(f *fakeAPI) { f.setPolicy(f.dead, "p", object{"expires": 60000}) },
			[]string{dead + "expires 60000 by policy p: RabbitMQ deletes the queue with its messages when no consumer has used it for 1m0s; remove expires" + narrow}},
		"alternate-exchange": {func(f *fakeAPI) { f.setPolicy(f.exchange, "ae", object{"alternate-exchange": "unrouted"}) },
			[]string{exchange + "alternate-exchange unrouted by policy ae: messages that reach no queue are confirmed and diverted, so the relay takes them for delivered; remove it" + narrow}},
		"alternate-exchange of an argument": {func(f *fakeAPI) { argumentsOf(f.exchange)["alternate-exchange"] = "unrouted" },
			[]string{exchange + "alternate-exchange unrouted by its argument: messages that reach no queue are confirmed and diverted, so the relay takes them for delivered; delete the exchange and run sagamill broker declare"}},
		"a limit that drops": {func(f *fakeAPI) { f.setPolicy(f.queue, "p", object{"max-length": 9, "overflow": "drop-head"}) },
			[]string{queue + "max-length 9 with overflow drop-head by policy p: a full queue drops its oldest messages; remove max-length" + narrow}},
		"a limit of dead letters": {func(f *fakeAPI) { f.setPolicy(f.dead, "p", object{"max-length-bytes": 9}) },
			[]string{dead + "max-length-bytes 9 by policy p: a full queue takes no more messages that shop.ordered.pay gives up on; remove max-length-bytes" + narrow}},
		"overflow alone": {func(f *fakeAPI) { f.setPolicy(f.queue, "p", object{"overflow": "drop-head"}) },
			[]string{queue + "overflow drop-head by policy p: RabbitMQ can lose a message while it moves it to shop.ordered.pay.dead; remove overflow" + narrow}},
		"no overflow": {func(f *fakeAPI) { delete(argumentsOf(f.queue), "x-overflow") },
			[]string{queue + "overflow drop-head by RabbitMQ's default: RabbitMQ can lose a message while it moves it to shop.ordered.pay.dead; delete the queue when it is empty and run sagamill broker declare"}},
		"no strategy": {func(f *fakeAPI) { delete(argumentsOf(f.queue), "x-dead-letter-strategy") },
			[]string{queue + "dead-letter-strategy at-most-once by RabbitMQ's default: RabbitMQ can lose a message while it moves it to shop.ordered.pay.dead; delete the queue when it is empty and run sagamill broker declare"}},
		"another strategy": {func(f *fakeAPI) {
			delete(argumentsOf(f.queue), "x-dead-letter-strategy")
			f.setPolicy(f.queue, "p", object{"dead-letter-strategy": "at-most-once"})
		}, []string{queue + "dead-letter-strategy at-most-once by policy p: RabbitMQ can lose a message while it moves it to shop.ordered.pay.dead; remove dead-letter-strategy" + narrow}},
		"no delivery-limit": {func(f *fakeAPI) { delete(argumentsOf(f.queue), "x-delivery-limit") },
			[]string{queue + "delivery-limit 20 by RabbitMQ's default: the queue gives up on a message after so many deliveries, not after 1000; delete the queue when it is empty and run sagamill broker declare"}},
		"no delivery-limit of an old broker": {func(f *fakeAPI) { f.version = "3.13.7"; delete(argumentsOf(f.queue), "x-delivery-limit") }, nil},
		"no limit of deliveries":             {func(f *fakeAPI) { argumentsOf(f.queue)["x-delivery-limit"] = -1 }, nil},
		"another dead-letter queue": {func(f *fakeAPI) {
			argumentsOf(f.queue)["x-dead-letter-exchange"] = "x"
			delete(argumentsOf(f.queue), "x-dead-letter-routing-key")
		}, []string{
			queue + "dead-letter-exchange x by its argument: a message that the queue gives up on does not go to shop.ordered.pay.dead; delete the queue when it is empty and run sagamill broker declare",
			queue + "has no dead-letter-routing-key: a message that the queue gives up on may be lost; delete the queue when it is empty and run sagamill broker declare",
		}},
		"delivery-limit": {func(f *fakeAPI) { f.setPolicy(f.queue, "p", object{"delivery-limit": 3}) },
			[]string{queue + "delivery-limit 3 by policy p: the queue gives up on a message after so many deliveries, not after 1000; remove delivery-limit" + narrow}},
		"delivery-limit of the dead-letter queue": {func(f *fakeAPI) { f.setPolicy(f.dead, "p", object{"delivery-limit": 3}) },
			[]string{dead + "delivery-limit 3 by policy p: the queue drops a message that is given back so often; its own limit is 1073741824; remove delivery-limit" + narrow}},
		"consumer-timeout": {func(f *fakeAPI) { f.setPolicy(f.queue, "p", object{"consumer-timeout": 60000}) },
			[]string{queue + "consumer-timeout 60000 by policy p: a message is delivered again if its handler takes longer than 1m0s; remove consumer-timeout" + narrow}},
		"the default of disconnections": {func(f *fakeAPI) { delete(argumentsOf(f.queue), "x-consumer-disconnected-timeout") },
			[]string{queue + "consumer-disconnected-timeout 60000 by RabbitMQ's default: after a node has died, the messages of its consumers wait for 1m0s; set consumer-disconnected-timeout to 1000 by a policy, or delete the queue when it is empty and run sagamill broker declare"}},
		"a policy about disconnections": {func(f *fakeAPI) {
			delete(argumentsOf(f.queue), "x-consumer-disconnected-timeout")
			f.setPolicy(f.queue, "p", object{"consumer-disconnected-timeout": 90000})
		}, []string{queue + "consumer-disconnected-timeout 90000 by policy p: after a node has died, the messages of its consumers wait for 1m30s; set consumer-disconnected-timeout to 1000 by a policy, or delete the queue when it is empty and run sagamill broker declare"}},
		"a policy that shortens disconnections": {func(f *fakeAPI) {
			delete(argumentsOf(f.queue), "x-consumer-disconnected-timeout")
			f.setPolicy(f.queue, "p", object{"consumer-disconnected-timeout": 1000})
		}, nil},
		"a classic queue": {func(f *fakeAPI) { f.queue["type"] = "classic" },
			[]string{queue + "has the type classic: only one node has its messages, and nothing counts how often a message is delivered; delete the queue when it is empty and run sagamill broker declare"}},
		"a stream": {func(f *fakeAPI) { f.queue["type"] = "stream" },
			[]string{queue + "has the type stream: it gives no message back that a service did not ack; delete the queue when it is empty and run sagamill broker declare"}},
		"another exchange": {func(f *fakeAPI) { f.exchange["type"] = "topic" },
			[]string{exchange + "has the type topic: services cannot declare it, and it may deliver to some of its queues only; delete it and run sagamill broker declare"}},
		"no exchange": {func(f *fakeAPI) { f.exchanges = []object{} },
			[]string{exchange + "is missing: messages of the topic are refused and stay in the outbox; run sagamill broker declare for a service that listens to the topic"}},
		"no queues": {func(f *fakeAPI) { f.queues = []object{} }, []string{
			queue + "is missing: the service gets no messages of the topic; run sagamill broker declare",
			dead + "is missing: a message that its queue gives up on waits there for ever; run sagamill broker declare",
		}},
		"no binding": {func(f *fakeAPI) { f.bound = []object{} }, []string{
			exchange + "has no queue: messages of the topic are refused and stay in the outbox; run sagamill broker declare for a service that listens to the topic",
			queue + "is not bound to exchange shop.ordered: the service gets no messages of the topic; run sagamill broker declare",
		}},
		"one member": {func(f *fakeAPI) { f.queue["members"], f.queue["online"] = []string{"a"}, []string{"a"} },
			[]string{queue + "has 1 member on 3 nodes: the queue stalls, and can lose its messages, if one of them fails; add members with rabbitmq-queues grow NODE all"}},
		"one node": {func(f *fakeAPI) {
			f.nodes = f.nodes[:1]
			for _, q := range f.queues {
				q["members"], q["online"] = []string{"a"}, []string{"a"}
			}
		}, nil},
		"a member offline": {func(f *fakeAPI) { f.queue["online"] = []string{"a", "c"} },
			[]string{queue + "has members that are offline: b: the queue stalls without a majority of its members; start these nodes"}},
		"messages in the dead-letter queue": {func(f *fakeAPI) { f.dead["messages"] = 2 },
			[]string{dead + "has 2 messages: no service handles messages that are here; find out why they were dead-lettered, then move them to shop.ordered.pay"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI()
			tt.change(f)
			out, complaint, err := f.check(t)
			want, wantErr := strings.Join(tt.want, "\n")+"\n", cli.FormatCount(len(tt.want), "problems")
			if len(tt.want) == 0 {
				want, wantErr = "no problems: 2 queues, 1 exchange\n", "<nil>"
			}
			if out != want || fmt.Sprint(err) != wantErr || complaint != "" {
				t.Errorf("got\n%s%v %s\nwant\n%s%s", out, err, complaint, want, wantErr)
			}
		})
	}
}

func TestCheckPrintsJSON(t *testing.T) {
	t.Parallel()
	f := newFakeAPI()
	f.setPolicy(f.exchange, "ae", object{"alternate-exchange": "unrouted"})
	out, _, err := f.check(t, "-json")
	const want = `{"object":"exchange shop.ordered","setting":"alternate-exchange unrouted","by":"policy ae","effect":`
	if !strings.HasPrefix(out, want) || strings.Count(out, "\n") != 1 || err == nil {
		t.Errorf("it prints %q, %v", out, err)
	}
	if out, _, err := newFakeAPI().check(t, "-json"); out != "" || err != nil {
		t.Errorf("without a finding it prints %q, %v", out, err)
	}
}

func TestCheckSaysWhatItDoesNotSee(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*fakeAPI){
		"members of queues, because the user needs the tag monitoring":                          func(f *fakeAPI) { f.nodes = nil },
		"messages in shop.ordered.pay.dead, because the broker does not say how many there are": func(f *fakeAPI) { delete(f.dead, "messages") },
	} {
		f := newFakeAPI()
		change(f)
		out, complaint, err := f.check(t)
		if err != nil || out != "no problems: 2 queues, 1 exchange\n" || complaint != "sagamill: not checked: "+want+"\n" {
			t.Errorf("it prints %q and %q, %v; want %s", out, complaint, err, want)
		}
	}
}

func TestCheckExplainsAnAPIThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*fakeAPI){
		"the management API refuses the user: the user needs the right password":             func(f *fakeAPI) { f.refusesAll = true },
		"the management API does not know the virtual host":                                  func(f *fakeAPI) { f.unknown = true },
		"check that its address is that of RabbitMQ's management API (virtual host my/host)": func(f *fakeAPI) { f.foreign = true },
		"the answer of the management API cannot be read: check that its address is":         func(f *fakeAPI) { f.version = "" },
	} {
		f := newFakeAPI()
		change(f)
		if out, _, err := f.check(t); out != "" || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("it prints %q, %v; want %s", out, err, want)
		}
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	for want, flags := range map[string][]string{
		"does not answer (dial tcp ": {"-management", strings.Replace(gone.URL, "//", "//watch:s3cr3t@", 1)},
		"-management, or RABBITMQ_MANAGEMENT_URL without it: it is not a URL with user": {"-management", "mq:s3cr3t:15672"},
		"requests to \"mq.example\" are without TLS":                                    {"-management", "http://watch:s3cr3t@mq.example"},
		"-vhost is for -management":                                                     {"-vhost", "shop"},
	} {
		if out, _, err := runCheck(t, flags...); out != "" || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v: it prints %q, %v; want %s", flags, out, err, want)
		}
	}
}
