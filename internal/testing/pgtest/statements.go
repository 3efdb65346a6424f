package pgtest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// recordVariable makes [Record] write the listing.
const recordVariable = "RECORD_STATEMENTS"

// statementMark begins a statement in a listing. The name of the statement follows.
const statementMark = "---- "

// Record compares the statements of a package with its listing for the newest migration,
// migrations/testdata/statements/NNN/name.sql. Listings for earlier migrations never change: they are the
// statements of binaries that knew no later migration. Each of queries is a struct as [PrepareAll] takes it,
// bound to {schema}. `make statements` writes the listing.
func Record(t *testing.T, name string, queries ...any) {
	t.Helper()
	statements := map[string]string{}
	for _, q := range queries {
		of := reflect.TypeOf(q).Name()
		eachStatement(q, func(field, statement string) { statements[strings.TrimPrefix(of+"."+field, ".")] = statement })
	}
	path := newestRecord(t, name)
	if os.Getenv(recordVariable) != "" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(listStatements(statements)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	recorded, err := Recorded(path)
	if err != nil {
		t.Fatalf("the statements of this package are not recorded for the newest migration (make statements): %v", err)
	}
	for _, key := range slices.Sorted(maps.Keys(statements)) {
		if recorded[key] != statements[key] {
			t.Errorf("statement %s is not as recorded (make statements)", key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(recorded)) {
		if _, ok := statements[key]; !ok {
			t.Errorf("statement %s is recorded, and there is none (make statements)", key)
		}
	}
}

// newestRecord returns the file with the statements of a package for the newest migration.
func newestRecord(t *testing.T, name string) string {
	t.Helper()
	root := moduleRoot(t)
	landed, _ := filepath.Glob(filepath.Join(root, "migrations", "[0-9][0-9][0-9]_*.sql")) // the pattern is right
	return filepath.Join(root, "migrations", "testdata", "statements", fmt.Sprintf("%03d", len(landed)), name+".sql")
}

// Statement returns a statement of another package as it is recorded, for a schema.
func Statement(t *testing.T, name, key, schema string) string {
	t.Helper()
	recorded, err := Recorded(newestRecord(t, name))
	if err != nil || recorded[key] == "" {
		t.Fatalf("statement %s of %s is not recorded (make statements): %v", key, name, err)
	}
	return strings.ReplaceAll(recorded[key], "{schema}", schema)
}

func listStatements(statements map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(statements)) {
		fmt.Fprintf(&b, "%s%s\n%s\n", statementMark, key, statements[key])
	}
	return b.String()
}

// Recorded reads a listing of [Record]: statements by name.
func Recorded(path string) (map[string]string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	statements := map[string]string{}
	for part := range strings.SplitSeq("\n"+string(content), "\n"+statementMark) {
		if name, statement, ok := strings.Cut(part, "\n"); ok && name != "" {
			statements[name] = strings.TrimSuffix(statement, "\n")
		}
	}
	return statements, nil
}

// moduleRoot returns the module's root, above the tested package.
func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("no go.mod above the test's directory")
	return ""
}
