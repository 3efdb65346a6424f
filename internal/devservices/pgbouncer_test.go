package devservices

import (
	"os"
	"strings"
	"testing"
)

// pgbouncer knows no database if the line of it has an empty password.
func TestPoolerConfigPassword(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"postgres://u@h:1/d":                "* = host=h port=1 user=u\n",
		"postgres://u:it's@h:1/d":           "* = host=h port=1 user=u password='it''s'\n",
		"host=h port=1 user=u password=''":  "* = host=h port=1 user=u\n",
		"host=h port=1 user=u password='p'": "* = host=h port=1 user=u password='p'\n",
	} {
		path, _, err := writePoolerConfig(t.TempDir(), 6432, nil, server, 4)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: the configuration lacks %q (%v):\n%s", server, want, err, text)
		}
	}
}
