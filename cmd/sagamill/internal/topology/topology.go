// Package topology has the command that makes an AsyncAPI document from the descriptions of services.
package topology

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/topology"
)

// maxDescription is how long a file with descriptions may be, in bytes.
const maxDescription = 32 << 20

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{
		{Words: "topology asyncapi", About: "print an AsyncAPI document of services, made from the descriptions that services serve at /topology", Run: printAsyncAPI, NoDatabase: true},
	}
}

func printAsyncAPI(_ context.Context, c *cli.Call) error {
	var files []string
	c.Flags.Func("from", "file with the descriptions that one or several services serve at /topology; - means standard input; repeat the flag for several files", func(name string) error {
		files = append(files, name)
		return nil
	})
	opts := &topology.AsyncAPIOptions{}
	c.Flags.StringVar(&opts.Title, "title", "", "title of the document; default: the names of the services")
	c.Flags.StringVar(&opts.Version, "version", "", "version of the document; default: the version of the services, or unversioned if the services have no common version")
	if err := c.ParseFlags(); err != nil {
		return err
	}
	if len(files) == 0 {
		return errors.New("no description of a service: give one with -from, such as curl -s localhost:8080/topology | sagamill topology asyncapi -from -")
	}
	var services []*topology.Service
	for _, name := range files {
		read, err := readDescriptions(c.Stdin, name)
		if err != nil {
			return fmt.Errorf("-from %s: %w", name, err)
		}
		services = append(services, read...)
	}
	document, err := topology.EncodeAsyncAPI(services, opts)
	if err != nil {
		return err
	}
	_, err = c.Stdout.Write(document)
	return err
}

// readDescriptions reads the descriptions in a file: JSON objects, or arrays of such objects.
func readDescriptions(stdin io.Reader, name string) (services []*topology.Service, err error) {
	in := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxDescription+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxDescription {
		return nil, fmt.Errorf("it is longer than %d bytes", maxDescription)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	for {
		var value json.RawMessage
		if err := decoder.Decode(&value); errors.Is(err, io.EOF) {
			return services, nil
		} else if err != nil {
			return nil, err
		}
		list := value
		if value[0] != '[' {
			list = append(append([]byte("["), value...), ']')
		}
		var read []*topology.Service
		if err := json.Unmarshal(list, &read); err != nil {
			return nil, err
		}
		for _, s := range read {
			if s == nil || s.Name == "" {
				return nil, errors.New(`this is no description of a service: the member "service" with its name is missing or empty`)
			}
		}
		services = append(services, read...)
	}
}
