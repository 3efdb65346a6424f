// Package plantest tests that a statement stays good when its tables fill after it was planned. A session plans a
// statement once, for whatever arguments, and perhaps while the tables are empty. Nothing makes the server plan it anew
// until the tables are analyzed.
package plantest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgservertest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// A Schema is one of the test's own, on a server of the test's own.
type Schema struct {
	Pool *pgxpool.Pool
	URL  string
	Name string
}

// New returns a schema with the tables of a service.
func New(t *testing.T) *Schema {
	t.Helper()
	return newSchema(t, newServer(t))
}

// newServer starts a server that collects no statistics by itself.
func newServer(t *testing.T) *pgservertest.Server {
	t.Helper()
	return pgservertest.New(t, "autovacuum=off")
}

func newSchema(t *testing.T, server *pgservertest.Server) *Schema {
	t.Helper()
	s := &Schema{URL: server.URL(), Name: pgtest.Name()}
	if err := migrations.Up(t.Context(), s.URL, s.Name); err != nil {
		t.Fatal(err)
	}
	s.Pool = pgtest.Pool(t, s.URL)
	return s
}

// Bind replaces {schema} in a statement.
func (s *Schema) Bind(statement string) string {
	return strings.ReplaceAll(statement, "{schema}", s.Name)
}

// Exec executes a statement.
func (s *Schema) Exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	if _, err := s.Pool.Exec(t.Context(), s.Bind(statement), args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// Texts returns the only column of a query.
func (s *Schema) Texts(t *testing.T, query string, args ...any) []string {
	t.Helper()
	rows, _ := s.Pool.Query(t.Context(), s.Bind(query), args...)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return all
}

// Suite has the statements of a package. Lists of names are separated by white space.
type Suite struct {
	// Queries returns structs of statements, as [pgtest.Record] takes them. Of an array, the first one is tested.
	Queries func(schema string) []any

	// Settings are names by the statement that is executed before them in their transaction.
	Settings map[string]string

	// Excepted are names by the reason why they are not tested. A statement must be here or in Arguments.
	Excepted map[string]string

	// OnlyNew are names by the reason why they are tested with new tables alone, of which the server knows nothing.
	OnlyNew map[string]string

	// Tables are those that Grow fills.
	Tables []string

	// Grow adds n rows of each kind.
	Grow func(t *testing.T, s *Schema, n int)

	// Arguments returns, for each statement, arguments with which it has about Work rows to do with, however many there
	// are.
	Arguments func(t *testing.T, s *Schema) map[string][]any
	Work      int
}

// empties are the ways in which tables come to be empty, and what the server then knows about them.
var empties = map[string]func(*testing.T, *Schema, *Suite){
	"new": func(*testing.T, *Schema, *Suite) {},
	"vacuumed": func(t *testing.T, s *Schema, suite *Suite) {
		s.Exec(t, "VACUUM "+suite.tables())
	},
	"analyzed with a few rows": func(t *testing.T, s *Schema, suite *Suite) {
		suite.Grow(t, s, 10)
		s.Exec(t, "ANALYZE "+suite.tables())
		for _, table := range suite.Tables {
			s.Exec(t, "DELETE FROM {schema}."+table)
		}
	},
}

// Few and Many are how many rows of each kind the tables get.
const few, many = 500, 10_000

// Run plans each statement while the tables are empty, fills them, and fails where a statement reads more of many rows
// than of few.
func (suite *Suite) Run(t *testing.T) {
	server := newServer(t)
	for name, empty := range empties {
		t.Run(name, func(t *testing.T) {
			s := newSchema(t, server)
			empty(t, s, suite)
			excepted := byName(suite.Excepted)
			if name != "new" {
				maps.Copy(excepted, byName(suite.OnlyNew))
			}
			suite.compare(t, s, excepted)
		})
	}
}

func (suite *Suite) compare(t *testing.T, s *Schema, excepted map[string]string) {
	planned := suite.plan(t, s, excepted)
	var plans [2]map[string]pgtest.Plan
	for i, n := range []int{few, many - few} {
		suite.Grow(t, s, n)
		plans[i] = map[string]pgtest.Plan{}
		arguments := suite.Arguments(t, s)
		for _, name := range slices.Sorted(maps.Keys(planned)) {
			args, listed := arguments[name]
			if !listed {
				t.Fatalf("the statement %s is neither in Arguments nor in Excepted", name)
			}
			plans[i][name] = planned[name].Run(t, name, args...)
		}
	}
	for name, plan := range plans[1] {
		few := plans[0][name]
		if plan.RowsRead() > few.RowsRead()+2*suite.Work || plan.Buffers() > 2*few.Buffers()+2*suite.Work {
			t.Errorf("%s reads %d rows and %d blocks of larger tables, in place of %d and %d:\n%s",
				name, plan.RowsRead(), plan.Buffers(), few.RowsRead(), few.Buffers(), plan)
		}
	}
}

// plan makes the server plan the statements that are not excepted.
func (suite *Suite) plan(t *testing.T, s *Schema, excepted map[string]string) map[string]*pgtest.OncePlanned {
	t.Helper()
	settingsOf := byName(suite.Settings)
	bySettings := map[string]map[string]string{}
	for _, queries := range suite.Queries(s.Name) {
		for name, statement := range pgtest.Statements(queries) {
			name, first := strings.CutSuffix(name, "0") // of an array
			if _, is := excepted[name]; is || !first && strings.ContainsAny(name, "0123456789") {
				continue
			}
			settings := settingsOf[name]
			if bySettings[settings] == nil {
				bySettings[settings] = map[string]string{}
			}
			bySettings[settings][name] = statement
		}
	}
	all := map[string]*pgtest.OncePlanned{}
	for settings, statements := range bySettings {
		planned := pgtest.PlanOnce(t, s.URL, settings, statements)
		for name := range statements {
			all[name] = planned
		}
	}
	return all
}

func (suite *Suite) tables() string {
	return "{schema}." + strings.Join(suite.Tables, ", {schema}.")
}

// byName returns the keys of lists by the names in their values.
func byName(lists map[string]string) map[string]string {
	all := map[string]string{}
	for key, names := range lists {
		for _, name := range strings.Fields(names) {
			all[name] = key
		}
	}
	return all
}
