// Package sqlschema binds statements to the Postgres schema that a service
// keeps its tables in. Every statement is qualified, so that nothing depends
// on search_path: several services can share a database, and a pooler may hand
// each transaction another connection.
package sqlschema

import (
	"fmt"
	"regexp"
	"strings"
)

// Default is the schema where the caller names none.
const Default = "sagamill"

// 63 bytes is what PostgreSQL keeps of an identifier.
var valid = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// Check returns an error unless schema can be used unquoted and is not one of
// PostgreSQL's own.
func Check(schema string) error {
	if !valid.MatchString(schema) || strings.HasPrefix(schema, "pg_") || schema == "information_schema" {
		return fmt.Errorf("schema %q must match %s and not begin with pg_", schema, valid)
	}
	return nil
}

// Bind replaces {schema} in statement. The schema has passed [Check].
func Bind(schema, statement string) string {
	return strings.ReplaceAll(statement, "{schema}", schema)
}
