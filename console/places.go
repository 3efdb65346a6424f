package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/operator"
)

// schemasAge is how long the list of schemas of a database is kept.
const schemasAge = 30 * time.Second

// A place is a schema of a database.
type place struct {
	Name     string // DATABASE/SCHEMA, as in URLs
	Label    string // Name, or the schema alone if there is one database
	Database string
	Schema   string
	pool     *pgxpool.Pool // reads
	operator *pgxpool.Pool // changes
	timeout  time.Duration
}

// instances returns the saga instances of p, to read them.
func (p *place) instances() (*operator.Instances, error) {
	return operator.NewInstances(p.pool, &operator.Options{Schema: p.Schema, By: undecided, Why: undecided, ReadTimeout: p.timeout})
}

// changedInstances returns the saga instances of p, for a person who changes them for a reason.
func (p *place) changedInstances(by Actor, why string) (*operator.Instances, error) {
	return operator.NewInstances(p.operator, &operator.Options{Schema: p.Schema, By: string(by), Why: why, ReadTimeout: p.timeout})
}

// A letterSide is one side of a schema.
type letterSide struct {
	*place
	Side operator.Side
}

// read returns the dead letters of s, to read them.
func (s letterSide) read() (*operator.DeadLetters, error) {
	return operator.NewDeadLetters(s.pool, s.Side, &operator.Options{Schema: s.Schema, ReadTimeout: s.timeout})
}

// change returns the dead letters of s, for a person who changes them for a reason.
func (s letterSide) change(by Actor, why string) (*operator.DeadLetters, error) {
	return operator.NewDeadLetters(s.operator, s.Side, &operator.Options{Schema: s.Schema, By: string(by), Why: why, ReadTimeout: s.timeout})
}

// An unreachable is a database whose schemas could not be listed.
type unreachable struct {
	Database string
	Problem  *pageError
}

// listPlaces returns the schemas of all databases, in order, and the databases that could not be read. A database that
// is down does not hide the others.
func (c *Console) listPlaces(ctx context.Context) (all []*place, down []unreachable) {
	for _, d := range c.databases {
		schemas := d.Schemas
		if len(schemas) == 0 {
			var err error
			schemas, err = c.schemas.get(ctx, d.Name, schemasAge, func(ctx context.Context) ([]string, error) {
				return operator.ListSchemas(ctx, d.Pool)
			})
			if err != nil {
				down = append(down, unreachable{d.Name, c.explainError(ctx, err)})
			}
		}
		for _, schema := range schemas {
			p := &place{Name: d.Name + "/" + schema, Database: d.Name, Schema: schema, pool: d.Pool, operator: cmp.Or(d.Operator, d.Pool), timeout: c.opts.ReadTimeout}
			if p.Label = p.Name; len(c.databases) == 1 {
				p.Label = schema
			}
			all = append(all, p)
		}
	}
	return all, down
}

// choosePlaces returns the place called name, or all if name is empty. Its error is a page that lists the places, or that
// says which databases cannot be read.
func (c *Console) choosePlaces(ctx context.Context, name string) (chosen, all []*place, err error) {
	all, down := c.listPlaces(ctx)
	if name == "" && len(all) > 0 {
		return all, all, nil
	}
	if i := slices.IndexFunc(all, func(p *place) bool { return p.Name == name }); i >= 0 {
		return all[i : i+1], all, nil
	}
	if len(down) > 0 {
		return nil, nil, down[0].Problem
	}
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = p.Name
	}
	if len(all) == 0 {
		return nil, nil, &pageError{Status: http.StatusNotFound, What: "No schema of these databases has tables of sagamill.",
			Advice: "Run sagamill migrate up, or start the console with another database."}
	}
	return nil, nil, &pageError{Status: http.StatusNotFound, What: fmt.Sprintf("There is no schema %.100q here.", name),
		Advice: "The schemas are " + strings.Join(names, ", ") + "."}
}

// pools returns the pools of all databases.
func (c *Console) pools() (all []*pgxpool.Pool) {
	for _, d := range c.databases {
		all = append(all, d.Pool)
	}
	return all
}
