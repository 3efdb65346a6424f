package pgtest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Plan is a node of what EXPLAIN (ANALYZE, BUFFERS) says in JSON.
type Plan struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Cost     float64 `json:"Total Cost"` // as the server expected it
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Filtered float64 `json:"Rows Removed by Filter"`
	Hit      int     `json:"Shared Hit Blocks"`
	Read     int     `json:"Shared Read Blocks"`
	Plans    []Plan
}

// Each calls do for p and each node below it.
func (p Plan) Each(do func(Plan)) {
	do(p)
	for _, child := range p.Plans {
		child.Each(do)
	}
}

// Buffers returns how many blocks were touched.
func (p Plan) Buffers() int { return p.Hit + p.Read }

// RowsRead returns how many rows of tables were read, those included that a condition has removed.
func (p Plan) RowsRead() (n int) {
	p.Each(func(node Plan) {
		if node.Relation != "" && strings.HasSuffix(node.Type, "Scan") {
			n += int((node.Rows + node.Filtered) * node.Loops)
		}
	})
	return n
}

// String returns the nodes with what they have read, one on each line.
func (p Plan) String() string {
	var b strings.Builder
	p.write(&b, 0)
	return b.String()
}

func (p Plan) write(b *strings.Builder, depth int) {
	fmt.Fprintf(b, "%*s%s %s %s: %.0f rows and %.0f removed, %.0f times, %d blocks\n",
		2*depth, "", p.Type, p.Relation, p.Index, p.Rows, p.Filtered, p.Loops, p.Buffers())
	for _, child := range p.Plans {
		child.write(b, depth+1)
	}
}

// OncePlanned are statements that a session has prepared and planned once, for whatever arguments. The server keeps
// such a plan while the tables fill. It plans anew after ANALYZE, VACUUM, TRUNCATE or a change of a definition, and
// after many changes of other tables' definitions at once. So the session is best on a server of the test's own.
type OncePlanned struct {
	conn     *pgx.Conn
	settings string
	names    map[string]string
	costs    map[string]float64 // of the plans
}

// sqlCountParameters counts the parameters of the prepared statement $1.
const sqlCountParameters = "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = $1"

// PlanOnce prepares statements in a session at url, and makes the server plan them with the tables as they are.
// settings is a statement that is executed first in each transaction, or empty.
func PlanOnce(t testing.TB, url, settings string, statements map[string]string) *OncePlanned {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	p := &OncePlanned{conn: conn, settings: settings, names: map[string]string{}, costs: map[string]float64{}}
	t.Cleanup(p.Close)
	for name, statement := range statements {
		p.names[name] = fmt.Sprint("planned_", len(p.names))
		var parameters int
		if _, err = conn.Exec(t.Context(), "PREPARE "+p.names[name]+" AS "+statement); err == nil {
			err = conn.QueryRow(t.Context(), sqlCountParameters, p.names[name]).Scan(&parameters)
		}
		if err != nil {
			t.Fatalf("prepare %s: %v", name, err)
		}
		p.costs[name] = p.explain(t, name, "", make([]any, parameters)).Cost
	}
	return p
}

// Close ends the session. It is called when the test ends, too.
func (p *OncePlanned) Close() { _ = p.conn.Close(context.Background()) }

// Run executes a statement by the plan that was made first, and takes back what it has changed.
func (p *OncePlanned) Run(t testing.TB, name string, args ...any) Plan {
	t.Helper()
	plan := p.explain(t, name, "ANALYZE, BUFFERS, ", args)
	if plan.Cost != p.costs[name] && !strings.Contains(p.settings, "force_custom_plan") {
		t.Fatalf("the server has planned %s anew", name)
	}
	return plan
}

// explain returns what EXPLAIN with options says of the statement called name.
func (p *OncePlanned) explain(t testing.TB, name, options string, args []any) Plan {
	t.Helper()
	tx, err := p.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), p.settings); err != nil {
		t.Fatal(err)
	}
	return Explain(t, tx, options, Execute(p.names[name], args))
}

// Explain returns what EXPLAIN with options, such as `ANALYZE, `, says of a statement.
func Explain(t testing.TB, tx pgx.Tx, options, statement string) Plan {
	t.Helper()
	var out []byte
	if err := tx.QueryRow(t.Context(), "EXPLAIN ("+options+"FORMAT JSON) "+statement).Scan(&out); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	var all []struct{ Plan Plan }
	if err := json.Unmarshal(out, &all); err != nil || len(all) != 1 {
		t.Fatalf("%s: %v", out, err)
	}
	return all[0].Plan
}

// Execute returns the statement that executes the prepared one called name.
func Execute(name string, args []any) string {
	if len(args) == 0 {
		return "EXECUTE " + name
	}
	literals := make([]string, len(args))
	for i, arg := range args {
		literals[i] = literal(arg)
	}
	return "EXECUTE " + name + "(" + strings.Join(literals, ", ") + ")"
}

// literal returns arg as a literal of SQL.
func literal(arg any) string {
	switch a := arg.(type) {
	case nil:
		return "NULL"
	case *string:
		if a == nil {
			return "NULL"
		}
		return "'" + *a + "'"
	case string:
		return "'" + a + "'"
	case []string:
		return "'{" + strings.Join(a, ",") + "}'"
	case time.Time:
		return "'" + a.Format(time.RFC3339Nano) + "'"
	case []byte:
		return fmt.Sprintf(`'\x%x'`, a)
	case []int64:
		return "'" + strings.NewReplacer("[", "{", "]", "}", " ", ",").Replace(fmt.Sprint(a)) + "'"
	default:
		return fmt.Sprint(a)
	}
}
