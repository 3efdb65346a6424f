package dev

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"go/build"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
)

// model is the service that init copies. It is a package of this module, so that it compiles and its test passes.
//
//go:embed newservice
var model embed.FS

const (
	modelName  = "newservice"
	modulePath = "github.com/sagamill/sagamill"
)

var serviceName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

// initService writes a new service into the directory NAME, which must not exist.
func initService(_ context.Context, c *cli.Call) error {
	checkout := c.Flags.String("replace", "", "local directory with the sources of "+modulePath+" for the new service; default: the new service uses the version of sagamill that this command has")
	name, err := parseName(c)
	if err != nil {
		return err
	}
	requirement, err := moduleRequirement(*checkout)
	if err != nil {
		return err
	}
	if err := os.Mkdir(name, 0o777); err != nil {
		return fmt.Errorf("%w: choose another NAME", err) // it names the directory
	}
	if err := writeService(name, requirement); err != nil {
		return errors.Join(err, os.RemoveAll(name))
	}
	fmt.Fprintf(c.Stdout, `%[1]s/ is a service. Next:

  cd %[1]s
  go mod tidy
  go test ./...
  go tool sagamill dev go run .

  curl -i localhost:8080/orders -H 'X-Tenant: acme' -H 'Idempotency-Key: order-1' -d '{"item":"book","amount":4200}'
  go tool sagamill saga show order-1
`, name)
	return nil
}

// parseName reads the NAME, which may stand before or after the flags.
func parseName(c *cli.Call) (string, error) {
	var words []string
	for rest := c.Args; ; {
		err := c.Flags.Parse(rest)
		if errors.Is(err, flag.ErrHelp) {
			c.PrintHelp()
		}
		if err != nil {
			return "", err
		}
		if c.Flags.NArg() == 0 {
			break
		}
		words, rest = append(words, c.Flags.Arg(0)), c.Flags.Args()[1:]
	}
	switch {
	case len(words) == 0:
		return "", errors.New("NAME is missing: give the name of the service")
	case len(words) > 1:
		return "", fmt.Errorf("%q is one word too many: a service has one NAME", words[1])
	case !serviceName.MatchString(words[0]):
		return "", fmt.Errorf("NAME: %q is not of the form [a-z][a-z0-9-]{0,30}", words[0])
	}
	return words[0], nil
}

// moduleRequirement returns the lines of go.mod that say where the module is.
func moduleRequirement(checkout string) (string, error) {
	if checkout != "" {
		directory, err := filepath.Abs(checkout)
		if err == nil {
			_, err = os.Stat(filepath.Join(directory, "sagatest", "servers"))
		}
		if err != nil {
			return "", fmt.Errorf("-replace: no sources of %s: %w", modulePath, err)
		}
		return fmt.Sprintf("require %s v0.0.0\n\nreplace %s => %s\n", modulePath, modulePath, directory), nil
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "", errors.New("this command was built from sources without a version: name their directory with -replace")
	}
	return fmt.Sprintf("require %s %s\n", modulePath, info.Main.Version), nil
}

// writeService copies the model, with the service's name in the place of the model's.
func writeService(name, requirement string) error {
	files, err := fs.Sub(model, modelName)
	if err != nil {
		return err
	}
	err = fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(name, filepath.FromSlash(path))
		if entry.IsDir() {
			return os.MkdirAll(to, 0o777)
		}
		text, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, []byte(renameModel(string(text), name)), 0o666)
	})
	if err != nil {
		return err
	}
	language, _, _ := strings.Cut(strings.TrimPrefix(goVersion(), "go"), "-")
	mod := fmt.Sprintf("module %s\n\ngo %s\n\ntool %s/cmd/sagamill\n\n%s", name, language, modulePath, requirement)
	return os.WriteFile(filepath.Join(name, "go.mod"), []byte(mod), 0o666)
}

// renameModel replaces the model's name by the name of the service, and in SQL by that of its schema.
func renameModel(text, name string) string {
	return strings.NewReplacer(modelName+".", schemaOf(name)+".", modelName, name).Replace(text)
}

// schemaOf returns the schema of a service, as sagamill.New names it.
func schemaOf(name string) string { return strings.ReplaceAll(name, "-", "_") }

// goVersion returns the version of Go that the service needs: the language version of this build.
func goVersion() string {
	tags := build.Default.ReleaseTags
	return tags[len(tags)-1]
}
