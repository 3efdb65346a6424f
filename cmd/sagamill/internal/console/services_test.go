package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestManagementIsParsed(t *testing.T) {
	t.Parallel()
	m, err := (&serviceFlags{management: "https://watch:s3cr3t@mq:15671/my%2Fhost"}).parseManagement()
	if err != nil || m.URL != "https://mq:15671" || m.User != "watch" || m.Password != "s3cr3t" || m.VHost != "my/host" {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := (&serviceFlags{}).parseManagement(); m != nil || err != nil {
		t.Errorf("without a URL: %+v, %v", m, err)
	}
	for _, wrong := range []string{"mq", "http://user:s3cr3t@mq:port"} {
		if _, err := (&serviceFlags{management: wrong}).parseManagement(); err == nil || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

// Descriptions come from files and from services, and a service that fails is named.
func TestDescriptionsAreRead(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/topology" {
			fmt.Fprint(w, `{"service":"a"}`)
			return
		}
		w.WriteHeader(http.StatusTeapot)
	}))
	defer service.Close()
	file := filepath.Join(t.TempDir(), "b.json")
	if err := os.WriteFile(file, []byte(`{"service":"b"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	read := (&serviceFlags{described: []string{service.URL + "/topology", file}}).topology()
	if text, err := read(t.Context()); err != nil || string(text) != "{\"service\":\"a\"}\n{\"service\":\"b\"}\n" {
		t.Errorf("%s, %v", text, err)
	}
	for _, name := range []string{service.URL + "/none", filepath.Join(t.TempDir(), "none")} {
		if _, err := (&serviceFlags{described: []string{name}}).topology()(t.Context()); err == nil || !strings.Contains(err.Error(), "-topology "+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	service.Close()
	secret := strings.Replace(service.URL, "http://", "http://user:s3cr3t@", 1) + "/topology?token=s3cr3t"
	if _, err := (&serviceFlags{described: []string{secret}}).topology()(t.Context()); err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("the error of a service that does not answer: %v", err)
	}
	if got := hideSecrets("http://user:s3c%r3t@host"); strings.Contains(got, "r3t") {
		t.Errorf("a URL that cannot be read is shown as %s", got)
	}
	if (&serviceFlags{}).topology() != nil {
		t.Error("without a flag there is a topology")
	}
}
