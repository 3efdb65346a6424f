// Package management reads RabbitMQ's management API: the queues, exchanges and policies of a virtual host.
package management

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	requestTimeout = 10 * time.Second
	maxAnswer      = 8 << 20 // bytes

	// MaxPage is how many queues or exchanges the API returns in one page.
	MaxPage = 500

	// maxPages limits what a caller waits for: a virtual host with more pages of exchanges is not read completely.
	maxPages = 100
)

// An API is the management API of a broker. No error of a method quotes the URL, the user or the password.
type API struct {
	URL      string // such as https://mq.example:15671, without credentials
	User     string // needs the tag monitoring or management, and may read the virtual host
	Password string
	VHost    string // default: /

	// Client sends the requests. It does not follow redirects. Default: [http.Client].
	Client *http.Client
}

// ErrURL reports that a text is not the URL of a management API.
var ErrURL = errors.New("it is not a URL with user and password, such as http://user:password@localhost:15672/shop")

// ParseURL returns the API at a URL with user, password and, as its path, the virtual host. The error is [ErrURL].
func ParseURL(text string) (*API, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, ErrURL
	}
	// A password with an unescaped slash would be a part of the virtual host, which messages name.
	if u.User == nil || strings.Contains(u.EscapedPath()+u.RawQuery+u.Fragment, "@") {
		return nil, ErrURL
	}
	a := &API{VHost: strings.TrimPrefix(u.Path, "/"), User: u.User.Username()}
	a.Password, _ = u.User.Password()
	a.URL = (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
	return a, nil
}

// An Error says what is wrong with the API, and what to do: two sentences without a capital and a full stop.
type Error struct {
	What, Advice string
	Refused      bool // the API does not let the user read this
}

// Error joins What and Advice.
func (e *Error) Error() string {
	if e.Advice == "" {
		return e.What
	}
	return e.What + ": " + e.Advice
}

// IsRefused reports whether err says that the user may not read something.
func IsRefused(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Refused
}

// errNotAPI reports an answer that does not look like one of the management API.
var errNotAPI = &Error{What: "the answer of the management API cannot be read", Advice: "check that its address is that of RabbitMQ's management API"}

// errVHost reports a virtual host that the broker does not have.
var errVHost = &Error{What: "the management API does not know the virtual host", Advice: "look at the name of the virtual host"}

// A Queue is a queue as the API describes it. A field that the broker does not report has its zero value.
type Queue struct {
	Name           string         `json:"name"`
	Type           string         `json:"type"`
	State          string         `json:"state"`
	Messages       *int64         `json:"messages"` // nil: the broker does not count, as with disabled statistics
	Unacked        int64          `json:"messages_unacknowledged"`
	Consumers      int            `json:"consumers"`
	Arguments      map[string]any `json:"arguments"`
	Policy         string         `json:"policy"`
	OperatorPolicy string         `json:"operator_policy"`
	Effective      map[string]any `json:"effective_policy_definition"` // what both policies set together
	Members        []string       `json:"members"`                     // nodes of a quorum queue
	Online         []string       `json:"online"`
}

// DeadSuffix ends the name of a queue for messages that the broker itself dead-letters.
const DeadSuffix = ".dead"

// IsDead reports whether q is such a queue.
func (q Queue) IsDead() bool { return strings.HasSuffix(q.Name, DeadSuffix) }

// Waiting returns how many messages the broker counts in q, 0 if it does not count.
func (q Queue) Waiting() int64 {
	if q.Messages == nil {
		return 0
	}
	return *q.Messages
}

const queueColumns = "name,type,state,messages,messages_unacknowledged,consumers,arguments,policy,operator_policy,effective_policy_definition,members,online"

// An Exchange is an exchange as the API describes it.
type Exchange struct {
	Name      string         `json:"name"`
	Type      string         `json:"type"`
	Arguments map[string]any `json:"arguments"`
	Policy    string         `json:"policy"`
}

// A Policy is a policy or an operator policy.
type Policy struct {
	Name       string         `json:"name"`
	Definition map[string]any `json:"definition"`
}

// ListQueues returns the queues of the virtual host. After limit queues it reads no further page.
func (a *API) ListQueues(ctx context.Context, limit int) ([]Queue, error) {
	return listPages[Queue](ctx, a, "queues", queueColumns, limit)
}

// ListExchanges returns the exchanges of the virtual host.
func (a *API) ListExchanges(ctx context.Context) ([]Exchange, error) {
	return listPages[Exchange](ctx, a, "exchanges", "name,type,arguments,policy", maxPages*MaxPage)
}

// ListPolicies returns the policies of the virtual host, or its operator policies. A user who may read queues may be refused
// here.
func (a *API) ListPolicies(ctx context.Context, operator bool) (all []Policy, err error) {
	kind := "policies"
	if operator {
		kind = "operator-policies"
	}
	return all, a.readAnswer(ctx, kind+"/"+a.escapedVHost(), errVHost, &all)
}

// ListBoundQueues returns the queues that are bound to an exchange.
func (a *API) ListBoundQueues(ctx context.Context, exchange string) (queues []string, err error) {
	var bindings []struct {
		Destination string `json:"destination"`
		Kind        string `json:"destination_type"`
	}
	err = a.readAnswer(ctx, "exchanges/"+a.escapedVHost()+"/"+url.PathEscape(exchange)+"/bindings/source", errVHost, &bindings)
	for _, b := range bindings {
		if b.Kind == "queue" {
			queues = append(queues, b.Destination)
		}
	}
	return queues, err
}

// ListNodes returns the names of the cluster's nodes. The user needs the tag monitoring.
func (a *API) ListNodes(ctx context.Context) (names []string, err error) {
	var nodes []struct {
		Name string `json:"name"`
	}
	err = a.readAnswer(ctx, "nodes?columns=name", errNotAPI, &nodes)
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return names, err
}

// ReadVersion returns the version of RabbitMQ, such as 4.3.0.
func (a *API) ReadVersion(ctx context.Context) (string, error) {
	var overview struct {
		Version string `json:"rabbitmq_version"`
	}
	err := a.readAnswer(ctx, "overview", errNotAPI, &overview)
	if err == nil && overview.Version == "" {
		err = errNotAPI
	}
	return overview.Version, err
}

// listPages returns all pages of a list of the virtual host, until it has limit elements.
func listPages[T any](ctx context.Context, a *API, kind, columns string, limit int) (all []T, err error) {
	for number := 1; ; number++ {
		var page struct {
			Items []T `json:"items"`
			Pages int `json:"page_count"`
		}
		path := fmt.Sprintf("%s/%s?page=%d&page_size=%d&columns=%s", kind, a.escapedVHost(), number, MaxPage, columns)
		if err := a.readAnswer(ctx, path, errVHost, &page); err != nil {
			return nil, err
		}
		if page.Items == nil {
			return nil, errNotAPI
		}
		all = append(all, page.Items...)
		if number >= page.Pages || len(all) >= limit {
			return all, nil
		}
	}
}

// explainNoAnswer returns the cause of an error of net/http, whose text begins with the whole URL.
func explainNoAnswer(err error) string {
	var e *url.Error
	if !errors.As(err, &e) {
		return ""
	}
	return " (" + e.Err.Error() + ")"
}

func (a *API) escapedVHost() string {
	if a.VHost == "" {
		return url.PathEscape("/")
	}
	return url.PathEscape(a.VHost)
}

// readAnswer reads the answer at path into v. absent is the error for status 404.
func (a *API) readAnswer(ctx context.Context, path string, absent *Error, v any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(a.URL, "/")+"/api/"+path, nil)
	if err != nil {
		return &Error{What: "the address of the management API makes no sense"}
	}
	request.SetBasicAuth(a.User, a.Password)
	client := http.Client{}
	if a.Client != nil {
		client = *a.Client
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // it would get the password
	response, err := client.Do(request)
	if err != nil {
		return &Error{What: "the management API at " + request.URL.Host + " does not answer" + explainNoAnswer(err), Advice: "look at its host and port, and whether the plugin rabbitmq_management runs"}
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return &Error{What: "the management API refuses the user", Advice: "the user needs the right password, the tag monitoring, and permissions on the virtual host", Refused: true}
	case http.StatusNotFound:
		return absent
	default:
		return &Error{What: fmt.Sprintf("the management API answers with status %d", response.StatusCode)}
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil || len(data) > maxAnswer || json.Unmarshal(data, v) != nil {
		return errNotAPI
	}
	return nil
}
