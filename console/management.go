package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sagamill/sagamill/internal/management"
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
	maxQueues         = management.MaxPage
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

// listQueues returns the first queues of the virtual host. Its error is a [pageError] that says what is wrong in words.
func (m *Management) listQueues(ctx context.Context) ([]management.Queue, error) {
	ctx, cancel := context.WithTimeout(ctx, managementTimeout)
	defer cancel()
	api := management.API{URL: m.URL, User: m.User, Password: m.Password, VHost: m.VHost, Client: m.Client}
	queues, err := api.ListQueues(ctx, maxQueues)
	var failed *management.Error
	if errors.As(err, &failed) {
		return nil, &pageError{Status: http.StatusBadGateway, What: makeSentence(failed.What), Advice: makeSentence(failed.Advice)}
	}
	return queues, err
}

// makeSentence returns text, which begins with a lower-case letter of ASCII, as a sentence.
func makeSentence(text string) string {
	if text == "" || strings.HasSuffix(text, "?") {
		return strings.ToUpper(text[:min(1, len(text))]) + text[min(1, len(text)):]
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}
