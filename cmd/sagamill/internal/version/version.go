// Package version has the command that prints the version of the build.
package version

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
)

// unstamped stands for a version or revision that the build has not recorded. Nothing is guessed in
// its place.
const unstamped = "none stamped"

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{{Words: "version", About: "print the version of this command, the version of its message format, and how many migrations it knows", Run: printVersion}}
}

// printVersion asks neither a database nor a broker. The command migrate version prints the
// migrations of a schema.
func printVersion(_ context.Context, c *cli.Call) error {
	if err := c.ParseFlags(); err != nil {
		return err
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	stamped, revision := readStamps(info)
	return cli.PrintFields(c.Stdout, [][2]string{
		{"sagamill", stamped},
		{"revision", revision},
		{"go", fmt.Sprintf("%s %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH)},
		{"message format", strconv.Itoa(outbox.Format)},
		{"schema", fmt.Sprintf("%d migrations", migrations.Newest())},
	})
}

// readStamps returns the version of the module and the revision of its sources, if the build has
// recorded them. go install MODULE@VERSION records the version. go build in a repository records both,
// except with -buildvcs=false.
func readStamps(info *debug.BuildInfo) (version, revision string) {
	version = info.Main.Version
	if version == "(devel)" { // Go's name for sources without a version
		version = ""
	}
	set := make(map[string]string)
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	if revision = set["vcs.revision"]; revision != "" {
		revision += " of " + set["vcs.time"]
		if set["vcs.modified"] == "true" {
			revision += ", with changes"
		}
	}
	return cmp.Or(version, unstamped), cmp.Or(revision, unstamped)
}
