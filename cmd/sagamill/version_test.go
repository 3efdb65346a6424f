package main

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/debug"
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

func TestOnlyWhatIsStampedIsSaid(t *testing.T) {
	t.Parallel()
	vcs := []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "0a1b2c"}, {Key: "vcs.time", Value: "2026-11-22T07:00:00Z"}}
	for _, tt := range []struct {
		name              string
		version           string
		settings          []debug.BuildSetting
		wantVersion, want string
	}{
		{"no build information", "", nil, unstamped, unstamped},
		{"built with -buildvcs=false", "(devel)", nil, unstamped, unstamped},
		{"installed as a module", "v0.1.0", nil, "v0.1.0", unstamped},
		{"built in a repository", "v0.1.0", vcs, "v0.1.0", "0a1b2c of 2026-11-22T07:00:00Z"},
		{"built of changed files", "(devel)", append(vcs[:3:3], debug.BuildSetting{Key: "vcs.modified", Value: "true"}), unstamped, "0a1b2c of 2026-11-22T07:00:00Z, with changes"},
	} {
		version, revision := stamps(&debug.BuildInfo{Main: debug.Module{Version: tt.version}, Settings: tt.settings})
		if version != tt.wantVersion || revision != tt.want {
			t.Errorf("%s: %q, %q; want %q, %q", tt.name, version, revision, tt.wantVersion, tt.want)
		}
	}
}
