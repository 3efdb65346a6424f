package version

import (
	"runtime/debug"
	"testing"
)

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
		version, revision := readStamps(&debug.BuildInfo{Main: debug.Module{Version: tt.version}, Settings: tt.settings})
		if version != tt.wantVersion || revision != tt.want {
			t.Errorf("%s: %q, %q; want %q, %q", tt.name, version, revision, tt.wantVersion, tt.want)
		}
	}
}
