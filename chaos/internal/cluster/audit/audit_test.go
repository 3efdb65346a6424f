package audit_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/chaos/internal/cluster/audit"
	"github.com/sagamill/sagamill/chaos/internal/cluster/shop"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// sqlPlantRun plants a run without a fault: two keys with three orders each, and two
// messages of red and of blue.
const sqlPlantRun = `
INSERT INTO {schema}.cause (scope, key, seq, amount)
SELECT 'order', key, seq, 100 * seq FROM generate_series(1, 2) key, generate_series(1, 3) seq
UNION ALL SELECT scope, 0, seq, 1 FROM unnest(ARRAY['red', 'blue']) scope, generate_series(1, 2) seq;
INSERT INTO {schema}.effect (step, scope, key, seq, amount)
SELECT step, scope, key, seq, amount FROM {schema}.cause
JOIN (VALUES ('order', 'payment'), ('order', 'shipping'), ('order', 'notification'), ('red', 'red'), ('blue', 'blue')) s(scope, step) USING (scope)
ORDER BY seq, key, step`

// TestViolations plants each kind of violation into a run without one.
func TestViolations(t *testing.T) {
	t.Parallel()
	const of = " FROM {schema}.effect WHERE scope = 'order' AND key = 1 AND seq = 2 AND step = 'shipping'"
	for _, tt := range []struct {
		name, spoil string
		want        audit.Findings
	}{
		{"none", "", audit.Findings{}},
		{"an effect is lost", "DELETE" + of, audit.Findings{Lost: 1, Money: 200}},
		{"the last effects are lost", "DELETE FROM {schema}.effect WHERE step = 'notification' AND seq = 3", audit.Findings{Lost: 2, Money: 600}},
		{"a whole order is lost", "DELETE FROM {schema}.effect WHERE scope = 'order' AND key = 2 AND seq = 1", audit.Findings{Lost: 3, Money: 300}},
		{"an effect is doubled", "INSERT INTO {schema}.effect (step, scope, key, seq, amount) SELECT step, scope, key, seq, amount" + of, audit.Findings{Doubled: 1, Money: 200}},
		{"a blue effect is doubled", "INSERT INTO {schema}.effect (step, scope, key, seq, amount) VALUES ('blue', 'blue', 0, 1, 1)", audit.Findings{Doubled: 1, Money: 1}},
		{"one effect is lost and another one doubled", "UPDATE {schema}.effect SET key = 2 WHERE scope = 'order' AND key = 1 AND seq = 2 AND step = 'shipping'", audit.Findings{Lost: 1, Doubled: 1}},
		{"an effect has no saga", "DELETE FROM {schema}.cause WHERE scope = 'order' AND key = 1 AND seq = 3", audit.Findings{Alien: 3, Money: 900}},
		{"an amount is wrong", "UPDATE {schema}.effect SET amount = amount + 7 WHERE scope = 'order' AND key = 1 AND seq = 2 AND step = 'payment'", audit.Findings{Money: 7}},
		{"two effects of a key are swapped", "UPDATE {schema}.effect SET seq = 3 - seq, amount = 300 - amount WHERE scope = 'order' AND key = 1 AND seq < 3 AND step = 'payment'", audit.Findings{Disordered: 1}},
		{"effects of red have no order", "UPDATE {schema}.effect SET seq = 3 - seq WHERE scope = 'red'", audit.Findings{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db, schema := plantRun(t)
			if _, err := db.Exec(t.Context(), sqlschema.Bind(schema, tt.spoil)); err != nil {
				t.Fatal(err)
			}
			got, err := audit.CheckSchema(t.Context(), db, schema, shop.StepsByService(), shop.ScopeOrder)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(audit.Findings{}, "Sagas", "Examples")); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			if violated := tt.want.Lost+tt.want.Doubled+tt.want.Alien+tt.want.Disordered > 0; violated != (len(got.Examples) > 0) {
				t.Errorf("described are %q", got.Examples)
			}
		})
	}
}

// TestSagas counts each saga once, whatever its number of steps.
func TestSagas(t *testing.T) {
	t.Parallel()
	db, schema := plantRun(t)
	got, err := audit.CheckSchema(t.Context(), db, schema, shop.StepsByService())
	if want := 10; err != nil || got.Sagas != want {
		t.Errorf("%d sagas, %v; want %d", got.Sagas, err, want)
	}
}

func plantRun(t *testing.T) (*pgxpool.Pool, string) {
	t.Helper()
	db, schema := pgtest.Pool(t, pgtest.Direct()), pgtest.Name()
	pgtest.DropSchema(t, schema)
	if _, err := db.Exec(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	if err := shop.CreateTables(t.Context(), db, schema); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), sqlschema.Bind(schema, sqlPlantRun)); err != nil {
		t.Fatal(err)
	}
	return db, schema
}
