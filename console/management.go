package console

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

// Management says where RabbitMQ's management API is. Pages show neither the URL nor the credentials.
type Management struct {
	URL      string // such as https://mq.example:15671, without credentials
	User     string // needs the tag monitoring or management, and may read the virtual host
	Password string
	VHost    string // default: /

	// Client sends the requests. It does not follow redirects. Default: one that waits 3 s at most.
	Client *http.Client
}

const (
	managementTimeout = 3 * time.Second
	managementAge     = 5 * time.Second
	maxManagement     = 8 << 20 // bytes of an answer
	maxQueues         = 500     // the API returns no more in one page
)

// check returns an error for a URL that makes no sense. It does not quote the URL, which may have a password.
func (m *Management) check() error {
	if m == nil {
		return nil
	}
	u, err := url.Parse(m.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("console: option Management: URL is not one of HTTP, such as https://mq.example:15671")
	case u.User != nil:
		return errors.New("console: option Management: URL has credentials; User and Password are for them")
	}
	return nil
}

// A brokerQueue is a queue as the management API describes it.
type brokerQueue struct {
	Name      string `json:"name"`
	Type      string `json:"type"`
	State     string `json:"state"`
	Messages  int64  `json:"messages"`
	Unacked   int64  `json:"messages_unacknowledged"`
	Consumers int    `json:"consumers"`
}

// listQueues returns the queues of the virtual host. Its error is a [pageError] that says what is wrong in words.
func (m *Management) listQueues(ctx context.Context) ([]brokerQueue, error) {
	vhost := m.VHost
	if vhost == "" {
		vhost = "/"
	}
	ctx, cancel := context.WithTimeout(ctx, managementTimeout)
	defer cancel()
	address := fmt.Sprintf("%s/api/queues/%s?page=1&page_size=%d&columns=name,type,state,messages,messages_unacknowledged,consumers",
		strings.TrimSuffix(m.URL, "/"), url.PathEscape(vhost), maxQueues)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, errManagement("The address of the management API makes no sense.", "")
	}
	request.SetBasicAuth(m.User, m.Password)
	client := http.Client{}
	if m.Client != nil {
		client = *m.Client
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // it would get the password
	response, err := client.Do(request)
	if err != nil {
		return nil, errManagement("The management API of the broker does not answer.", "Look whether the plugin rabbitmq_management runs.")
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, errManagement("The management API refuses the user of the console.", "The user needs the tag monitoring, and permissions on the virtual host.")
	case http.StatusNotFound:
		return nil, errManagement("The management API does not know the virtual host.", "Look at the option Management.")
	default:
		return nil, errManagement(fmt.Sprintf("The management API answers with status %d.", response.StatusCode), "")
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxManagement+1))
	var page struct {
		Items []brokerQueue `json:"items"`
	}
	if err != nil || len(data) > maxManagement || json.Unmarshal(data, &page) != nil || page.Items == nil {
		return nil, errManagement("The answer of the management API cannot be read.", "Is it the address of RabbitMQ's management API?")
	}
	return page.Items, nil
}

func errManagement(what, advice string) *pageError {
	return &pageError{Status: http.StatusBadGateway, What: what, Advice: advice}
}
