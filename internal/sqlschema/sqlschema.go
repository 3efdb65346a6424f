// Package sqlschema binds statements to the Postgres schema of a service's tables. Every statement is
// qualified, so that nothing depends on search_path: several services can share a database, and a pooler may
// give each transaction another connection.
package sqlschema

import (
	"fmt"
	"regexp"
	"strings"
)

// Default is the schema where the caller names none.
const Default = "sagamill"

// PostgreSQL truncates an identifier to 63 bytes.
var valid = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// Check returns an error unless schema can be used unquoted and is not one of
// PostgreSQL's own. The error says which of the three rules schema breaks: its
// letters, PostgreSQL's names, PostgreSQL's reserved words.
func Check(schema string) error {
	switch {
	case !valid.MatchString(schema):
		return fmt.Errorf("schema %q must match %s", schema, valid)
	case strings.HasPrefix(schema, "pg_"), schema == "information_schema":
		return fmt.Errorf("schema %q is a name of PostgreSQL's own: choose another one, which does not begin with pg_", schema)
	case isReserved(schema):
		return fmt.Errorf("schema %q is a reserved word of PostgreSQL, and schemas are written without quotes: choose another name, such as %s_service", schema, schema)
	}
	return nil
}

// Bind replaces {schema} in statement. The schema has passed [Check].
func Bind(schema, statement string) string {
	return strings.ReplaceAll(statement, "{schema}", schema)
}
