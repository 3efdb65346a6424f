package sqlschema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// The error says which rule the name breaks.
func TestCheck(t *testing.T) {
	t.Parallel()
	const letters, own, reserved = "must match", "of PostgreSQL's own", "reserved word"
	for schema, want := range map[string]string{
		"orders": "", "sagamill": "", "_x9": "", "public": "", "orders_select": "", "pgorders": "", "sequence": "",
		strings.Repeat("a", 63): "", strings.Repeat("a", 64): letters,
		"": letters, "Orders": letters, "9a": letters, "a-b": letters, "a b": letters, `a"b`: letters, "a.b": letters, "größe": letters,
		"pg_": own, "pg_catalog": own, "pg_orders": own, "information_schema": own,
		"order": reserved, "select": reserved, "user": reserved, "system_user": reserved, "left": reserved,
	} {
		err := sqlschema.Check(schema)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("Check(%q) = %v, want %q", schema, err, want)
		}
	}
}

// syntaxError is PostgreSQL's code of one.
const syntaxError = "42601"

// A keyword is one of the server's, with its category in pg_get_keywords.
type keyword struct{ Word, Category string }

// Check refuses exactly the keywords that the server refuses as the name of a schema.
func TestCheckAgreesWithTheServerAboutKeywords(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.URL())
	rows, _ := pool.Query(t.Context(), "SELECT word, catcode::text FROM pg_get_keywords() ORDER BY word")
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[keyword])
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, k := range all {
		counts[k.Category]++
		refused := refusesSchema(t, pool, k.Word)
		if reserved := k.Category == "R" || k.Category == "T"; refused != reserved {
			t.Errorf("%s of category %s: the server refuses it: %t", k.Word, k.Category, refused)
		}
		if err := sqlschema.Check(k.Word); (err != nil) != refused {
			t.Errorf("Check(%q) = %v, the server refuses it: %t", k.Word, err, refused)
		}
	}
	for _, category := range []string{"R", "T", "C", "U"} {
		if counts[category] == 0 {
			t.Errorf("the server has no keywords of category %s: %v", category, counts)
		}
	}
}

// refusesSchema reports whether the server takes word, without quotes, for a mistake in
// the syntax. A schema that it does create is rolled back.
func refusesSchema(t *testing.T, pool *pgxpool.Pool, word string) bool {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	_, err = tx.Exec(t.Context(), "CREATE SCHEMA "+word)
	var refused *pgconn.PgError
	if err != nil && (!errors.As(err, &refused) || refused.Code != syntaxError) {
		t.Fatalf("CREATE SCHEMA %s: %v", word, err)
	}
	return err != nil
}
