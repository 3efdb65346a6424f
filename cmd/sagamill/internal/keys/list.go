// Package keys has the commands about requests whose outcome is unknown.
package keys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/operator"
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{
		{Words: "keys list", About: "list the idempotency keys of requests whose outcome is unknown: they may have had their effect outside of the database, and no retry runs them before a decision; keys in Redis are not listed", Run: listKeys},
		{Words: "keys show", About: "print what is known of the request of a key, which you name by its DIGEST or with -key", Run: showKey},
		{Words: "keys complete", About: "store an answer for the retries of a request whose outcome is unknown; name its key by the DIGEST or with -key", Run: completeKey},
		{Words: "keys release", About: "let a request whose outcome is unknown run again at its next retry; name its key by the DIGEST or with -key", Run: releaseKey},
	}
}

// openKeys returns the keys of t, for the person who.
func openKeys(t *cli.Target, who *operator.Options) (*operator.Keys, error) {
	return operator.NewKeys(t.DB, &operator.Options{Schema: t.Schema, By: who.By, Why: who.Why})
}

func addPlain(c *cli.Call) *bool {
	return c.Flags.Bool("plain", false, "print keys and scopes too; without -plain, the command prints only the digests of keys")
}

func listKeys(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.DefaultSchema)
	var filter operator.KeyFilter
	c.Flags.StringVar(&filter.Scope, "scope", "", "only keys of this scope")
	c.Flags.StringVar(&filter.Namespace, "namespace", "", "only keys of this namespace")
	after := &cli.Place[string]{}
	c.Flags.Func("after", "print only keys behind the one with this digest, to continue a list; with several schemas, write SCHEMA:DIGEST", func(s string) error {
		after.Given, after.Entry = true, s
		if i := strings.LastIndexByte(s, ':'); i >= 0 {
			after.Name, after.Entry = s[:i], s[i+1:]
		}
		return nil
	})
	limit, plain := c.AddLimitFlag(), addPlain(c)
	asJSON := c.Flags.Bool("json", false, "print JSON, one object per line")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if err := cmp.Or(cli.CheckLimit(*limit), c.CheckFilled([]string{"scope", "namespace"})); err != nil {
		return err
	}
	targets, err := c.OpenTargets(ctx, cli.DefaultSchema)
	if err != nil {
		return err
	}
	defer targets.Close()
	all, err := cli.ListTargets(ctx, targets, after, *limit, func(ctx context.Context, t *cli.Target, after string, limit int) (page []operator.KeyRecord, err error) {
		k, err := openKeys(t, &operator.Options{})
		if err != nil {
			return nil, err
		}
		var last operator.KeyRecord
		if after != "" {
			if last, err = k.Find(ctx, operator.KeyRef{Digest: after}); err != nil {
				return nil, fmt.Errorf("-after: %w", err)
			}
		}
		return k.List(ctx, filter, last, limit)
	})
	if err != nil {
		return err
	}
	if err := printKeys(c, targets, all, *plain, *asJSON); err != nil {
		return err
	}
	if len(all) == *limit {
		last := all[len(all)-1]
		fmt.Fprintf(c.Stderr, "there may be more: -after %s\n", targets.FormatPlace(last.Target, last.Entry.Digest))
	}
	return nil
}

// printKeys prints a table, or a line of JSON each.
func printKeys(c *cli.Call, targets *cli.Targets, all []cli.Listed[operator.KeyRecord], plain, asJSON bool) error {
	if asJSON {
		for i := range all {
			if err := cli.PrintJSON(c.Stdout, newKey(all[i].Name, &all[i].Entry, plain)); err != nil {
				return err
			}
		}
		return nil
	}
	header := []string{"DIGEST", "NAMESPACE", "ATTEMPT", "SINCE", "LEASE ENDED"}
	if plain {
		header = append(header, "SCOPE", "KEY")
	}
	rows := make([][]string, len(all))
	for i := range all {
		k := &all[i].Entry
		rows[i] = []string{k.Digest, cli.FormatCell(k.Namespace), strconv.Itoa(k.Attempt), cli.FormatTime(k.Since), cli.FormatTime(k.LeaseUntil)}
		if plain {
			rows[i] = append(rows[i], cli.FormatCell(k.Scope), cli.FormatCell(k.Key))
		}
	}
	return targets.PrintListed(c, header, cli.TargetsOf(all), rows)
}

// A Key is the record of a key as JSON. Scope and key are left out without -plain.
type Key struct {
	Schema     string `json:"schema"`
	Digest     string `json:"digest"`
	Namespace  string `json:"namespace"`
	Scope      string `json:"scope,omitempty"`
	Key        string `json:"key,omitempty"`
	State      string `json:"state"`
	Attempt    int    `json:"attempt"`
	Token      string `json:"token"`
	Since      string `json:"since"`
	LeaseUntil string `json:"lease_until"`
	Refusal    string `json:"refusal,omitempty"` // why a decision would be refused
	Did        string `json:"did,omitempty"`     // of a decision
}

func newKey(schema string, k *operator.KeyRecord, plain bool) Key {
	j := Key{Schema: schema, Digest: k.Digest, Namespace: k.Namespace, State: k.State.String(), Attempt: k.Attempt, Token: k.Token,
		Since: cli.FormatTime(k.Since), LeaseUntil: cli.FormatTime(k.LeaseUntil)}
	if plain {
		j.Scope, j.Key = k.Scope, k.Key
	}
	if err := k.Refusal(); err != nil {
		j.Refusal = err.Error()
	}
	return j
}

// A reference is the part of a command line that names a key.
type reference struct {
	operator.KeyRef
	plain, asJSON *bool
}

// addReference adds the flags that name a key. The digest is an argument.
func addReference(c *cli.Call) *reference {
	c.TakeSeveral(cli.DefaultSchema)
	r := &reference{plain: addPlain(c)}
	c.Flags.StringVar(&r.Key, "key", "", "the idempotency key, in place of the argument DIGEST; it finds keys in every state")
	c.Flags.StringVar(&r.Scope, "scope", "", "with -key: scope of the key; required if several scopes have this key")
	c.Flags.StringVar(&r.Namespace, "namespace", "", "with -key: namespace of the key; required if several namespaces have this key")
	r.asJSON = c.Flags.Bool("json", false, "print JSON")
	return r
}

// parseReference reads the command line.
func (r *reference) parseReference(c *cli.Call) (err error) {
	if r.Digest, err = c.ParseWord(); err != nil {
		return err
	}
	switch {
	case (r.Digest == "") == (r.Key == ""):
		return errors.New("say which key: by its DIGEST, as keys list prints it, or with -key")
	case r.Digest != "" && c.IsGiven([]string{"scope", "namespace"}):
		return errors.New("-scope and -namespace are for -key: a digest has both")
	}
	return c.CheckFilled([]string{"key", "scope", "namespace"})
}

// findKey returns the record in the schema that has it. A key of several schemas is an error that names them.
func (r *reference) findKey(ctx context.Context, targets *cli.Targets) (of *cli.Target, found operator.KeyRecord, err error) {
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	var with []*cli.Target
	for _, t := range targets.All {
		k, err := openKeys(t, &operator.Options{})
		if err != nil {
			return nil, found, err
		}
		one, err := k.Find(ctx, r.KeyRef)
		switch {
		case err == nil:
			with = append(with, t)
			of, found = t, one
		case !targets.Several() || !errors.Is(err, operator.ErrNoKey) && !sqlschema.Missing(err):
			return nil, found, err
		}
	}
	switch len(with) {
	case 0:
		return nil, found, operator.ErrNoKey
	case 1:
		return of, found, nil
	}
	return nil, found, fmt.Errorf("the key is in several schemas: say which with -schema: %s", cli.JoinNames(with))
}

func showKey(ctx context.Context, c *cli.Call) error {
	r := addReference(c)
	if err := r.parseReference(c); err != nil {
		return err
	}
	targets, err := c.OpenTargets(ctx, cli.DefaultSchema)
	if err != nil {
		return err
	}
	defer targets.Close()
	of, found, err := r.findKey(ctx, targets)
	if err != nil {
		return err
	}
	if *r.asJSON {
		return cli.PrintJSON(c.Stdout, newKey(of.Name, &found, *r.plain))
	}
	return r.printKey(c, &found)
}

func (r *reference) printKey(c *cli.Call, k *operator.KeyRecord) error {
	fields := [][2]string{{"digest", k.Digest}, {"namespace", cli.FormatCell(k.Namespace)}}
	if *r.plain {
		fields = append(fields, [2]string{"scope", cli.FormatCell(k.Scope)}, [2]string{"key", cli.FormatCell(k.Key)})
	}
	decision := "keys complete stores an answer, and keys release lets the request run again"
	if err := k.Refusal(); err != nil {
		decision = err.Error()
	}
	fields = append(fields, [2]string{"state", k.State.String()}, [2]string{"attempt", strconv.Itoa(k.Attempt)}, [2]string{"token", k.Token},
		[2]string{"since", cli.FormatTime(k.Since) + ", for " + cli.FormatAge(max(0, k.At.Sub(k.Since).Round(time.Second)))},
		[2]string{"lease until", cli.FormatTime(k.LeaseUntil)}, [2]string{"decision", decision})
	return cli.PrintFields(c.Stdout, fields)
}
