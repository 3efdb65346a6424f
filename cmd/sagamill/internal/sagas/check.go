package sagas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/saga"
)

func sagaCheck(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.DefaultSchema)
	file := c.Flags.String("manifest", "", "file with the JSON of saga.NewManifest, which lists the sagas of the binary; - means standard input")
	names := c.Flags.String("saga", "", "check only these sagas, separated by commas; default: all sagas")
	asJSON := c.Flags.Bool("json", false, "print JSON, one object per line")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if err := c.CheckFilled([]string{"saga"}); err != nil {
		return err
	}
	m, err := readManifest(c, *file)
	if err != nil {
		return err
	}
	var only []string
	if *names != "" {
		only = strings.Split(*names, ",")
	}
	targets, err := c.OpenTargets(ctx, cli.DefaultSchema)
	if err != nil {
		return err
	}
	defer targets.Close()
	var live []cli.Listed[saga.LiveVersion]
	err = targets.Each(ctx, func(ctx context.Context, t *cli.Target) error {
		of, err := m.Check(ctx, t.DB, t.Schema, only...)
		live = append(live, cli.ListedIn(t, of)...)
		return err
	})
	if err != nil {
		return err
	}
	return printLive(c, targets, live, *asJSON)
}

func readManifest(c *cli.Call, file string) (saga.Manifest, error) {
	var from io.Reader = c.Stdin
	name := file
	switch file {
	case "":
		return nil, errors.New("say with -manifest what the binary knows: json.Marshal(saga.NewManifest(…)); -: from standard input")
	case "-":
		name = "standard input"
	default:
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}
	m, err := saga.ReadManifest(from)
	if err != nil {
		return nil, fmt.Errorf("-manifest %s: %w", name, err)
	}
	return m, nil
}

// printLive prints the versions with live instances. It returns an error if some of them cannot be
// finished.
func printLive(c *cli.Call, targets *cli.Targets, live []cli.Listed[saga.LiveVersion], asJSON bool) error {
	rows := make([][]string, len(live))
	bad := 0
	for k := range live {
		v := live[k].Entry
		if v.Problem != "" {
			bad++
		}
		if asJSON {
			err := cli.PrintJSON(c.Stdout, struct {
				Schema    string `json:"schema"`
				Saga      string `json:"saga"`
				Version   int    `json:"version"`
				Instances int    `json:"live"`
				Problem   string `json:"problem,omitempty"`
			}{live[k].Name, v.Saga, v.Version, v.Instances, v.Problem})
			if err != nil {
				return err
			}
		}
		rows[k] = []string{cli.FormatCell(v.Saga), strconv.Itoa(v.Version), strconv.Itoa(v.Instances), cmp.Or(v.Problem, "can be finished")}
	}
	if !asJSON {
		if err := targets.PrintListed(c, []string{"SAGA", "VERSION", "LIVE", "PROBLEM"}, cli.TargetsOf(live), rows); err != nil {
			return err
		}
	}
	if bad > 0 {
		return fmt.Errorf("%s cannot be finished by that binary", cli.FormatCount(bad, "versions"))
	}
	return nil
}
