package cli

import (
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
)

// A database for changes belongs to the database of its name, or to the only one.
func TestOperatorDatabasesAreNamed(t *testing.T) {
	t.Parallel()
	const one, two, changes = "-database orders=postgres://reader@localhost/a", "-database payments=postgres://reader@localhost/b", "-operator-database "
	for _, tt := range []struct{ line, names, err string }{
		{one, "", ""},
		{one + " " + changes + "postgres://operator@localhost/a", "orders", ""},
		{one + " " + two + " " + changes + "payments=postgres://operator@localhost/b", "payments", ""},
		{one + " " + two + " " + changes + "postgres://operator@localhost/a", "", "with several databases it must be NAME=URL"},
		{one + " " + changes + "order=postgres://operator@localhost/a", "", "no -database has the name order"},
		{one + " " + changes + "orders=postgres://operator@localhost/a " + changes + "orders=postgres://operator@localhost/a", "", "names orders twice"},
		{one + " " + changes + "orders=postgres://operator:secret@localhost:port/a", "", "-operator-database"},
		{one + " " + changes + "postgres://operator:secret@db.example.com/a", "", "-operator-database"}, // without TLS
	} {
		c := NewCall(Command{Words: "console"}, strings.Fields(tt.line), io.Discard, io.Discard)
		c.AddOperatorFlag()
		err := c.ParseDatabaseFlags()
		names := ""
		if err == nil {
			all, failed := c.OpenDatabases(t.Context())
			if failed != nil {
				t.Fatal(failed)
			}
			pools, failed := c.OpenOperators(t.Context(), all)
			err, names = failed, strings.Join(slices.Sorted(maps.Keys(pools)), " ")
			for _, pool := range pools {
				pool.Close()
			}
			for _, d := range all {
				d.Pool.Close()
			}
		}
		switch {
		case tt.err == "" && (err != nil || names != tt.names):
			t.Errorf("%s: pools for %q, %v; want %q", tt.line, names, err, tt.names)
		case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "secret")):
			t.Errorf("%s: %v; want %s", tt.line, err, tt.err)
		}
	}
}
