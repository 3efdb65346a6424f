package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/console"
	"github.com/sagamill/sagamill/internal/management"
)

const (
	// maxDescription is how long the description of a service may be, in bytes.
	maxDescription = 8 << 20

	describeTimeout = 3 * time.Second
)

// serviceFlags say where services describe themselves, and where the broker's management API is.
type serviceFlags struct {
	described  []string // files, or URLs of HTTP
	management string
}

func addServiceFlags(c *cli.Call) *serviceFlags {
	f := &serviceFlags{}
	c.Flags.Func("topology", "URL at which a service serves its description, such as http://localhost:8080/topology, or a file with this description; repeat the flag for several services", func(name string) error {
		if name == "" {
			return errors.New("it is empty")
		}
		if _, err := url.Parse(name); isURL(name) && err != nil {
			return errors.New("it is not a URL that can be read") // the error would quote it with its password
		}
		f.described = append(f.described, name)
		return nil
	})
	c.Flags.StringVar(&f.management, "management", os.Getenv(cli.ManagementVariable), cli.ManagementUsage)
	return f
}

// parseManagement returns the management API of the command line; nil: none. Its error does not quote the URL, which
// has a password.
func (f *serviceFlags) parseManagement() (*console.Management, error) {
	if f.management == "" {
		return nil, nil
	}
	api, err := management.ParseURL(f.management)
	if err != nil {
		return nil, fmt.Errorf("-management, or "+cli.ManagementVariable+" without it: %w", err)
	}
	return &console.Management{URL: api.URL, User: api.User, Password: api.Password, VHost: api.VHost}, nil
}

// topology returns a function that reads all descriptions anew; nil: the command line names none.
func (f *serviceFlags) topology() func(context.Context) ([]byte, error) {
	if len(f.described) == 0 {
		return nil
	}
	return func(ctx context.Context) ([]byte, error) {
		var all bytes.Buffer
		for _, name := range f.described {
			text, err := readDescription(ctx, name)
			if err != nil {
				return nil, fmt.Errorf("-topology %s: %w", hideSecrets(name), err)
			}
			all.Write(text)
			all.WriteByte('\n')
		}
		return all.Bytes(), nil
	}
}

// hideSecrets returns the name of a file, or a URL without its user, password and query, for a log.
func hideSecrets(name string) string {
	if !isURL(name) {
		return name
	}
	u, err := url.Parse(name)
	if err != nil {
		return "(a URL that cannot be read)"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

func isURL(name string) bool {
	return strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://")
}

func readDescription(ctx context.Context, name string) ([]byte, error) {
	if !isURL(name) {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		return readLimited(file)
	}
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, name, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if failed := (*url.Error)(nil); errors.As(err, &failed) {
		return nil, failed.Err // without the URL
	}
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the service answers with status %d", response.StatusCode)
	}
	return readLimited(response.Body)
}

func readLimited(from io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxDescription+1))
	if err == nil && len(text) > maxDescription {
		err = fmt.Errorf("it is longer than %d bytes", maxDescription)
	}
	return text, err
}
