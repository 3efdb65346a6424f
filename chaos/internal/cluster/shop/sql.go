package shop

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// sqlCreateTables creates the tables for the audit: the cause of each saga, and each effect. A unique key would
// hide a second effect, so the tables have none. The id gives the order of effects.
const sqlCreateTables = `
CREATE TABLE {schema}.cause (
	scope text NOT NULL, key int NOT NULL, seq int NOT NULL, amount bigint NOT NULL
);
CREATE TABLE {schema}.effect (
	id bigint GENERATED ALWAYS AS IDENTITY,
	step text NOT NULL, scope text NOT NULL, key int NOT NULL, seq int NOT NULL, amount bigint NOT NULL
)`

// sqlInsertEffect is the whole work of a step.
const sqlInsertEffect = `
INSERT INTO {schema}.effect (step, scope, key, seq, amount) VALUES ($1, $2, $3, $4, $5)`

// sqlInsertCauses records the sagas that a transaction begins.
const sqlInsertCauses = `
INSERT INTO {schema}.cause (scope, key, seq, amount)
SELECT * FROM unnest($1::text[], $2::int[], $3::int[], $4::bigint[])`

// CreateTables makes the tables cause and effect in a schema.
func CreateTables(ctx context.Context, db *pgxpool.Pool, schema string) error {
	_, err := db.Exec(ctx, sqlschema.Bind(schema, sqlCreateTables))
	return err
}
