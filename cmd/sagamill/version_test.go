package main

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
)

// The database is one that nobody could reach.
func TestVersionIsSaidOffline(t *testing.T) {
	t.Parallel()
	for _, word := range []string{"version", "-version", "--version"} {
		var out, complaint bytes.Buffer
		if code := run(t.Context(), []string{word, "-database", "postgres://u:s3cret@127.0.0.1:1/x"}, &out, &complaint); code != 0 || complaint.Len() > 0 {
			t.Fatalf("sagamill %s: exit %d, %s", word, code, complaint.String())
		}
		for _, want := range []string{
			"sagamill        ",
			"revision        ",
			"go              " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH + "\n",
			fmt.Sprintf("message format  %d\n", outbox.Format),
			fmt.Sprintf("schema          %d migrations\n", migrations.Newest()),
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("sagamill %s prints\n%swithout %q", word, out.String(), want)
			}
		}
	}
}
