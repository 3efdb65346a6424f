package txguard_test

import (
	"testing"

	"github.com/sagamill/sagamill/internal/txguard"
)

var statements = map[string]bool{
	"COMMIT": true, "commit;": true, " \n\tEnd work": true, "ABORT": true, "ROLLBACK": true, "rollback work": true,
	"COMMIT AND CHAIN": true, "ROLLBACK AND CHAIN": true, "PREPARE TRANSACTION 'x'": true, "SELECT 1; COMMIT": true,
	"/* a /* b */ */ COMMIT": true, "-- c\nCOMMIT": true, ";;COMMIT": true, "SELECT ';'; ROLLBACK": true,
	`SELECT E'\';'; COMMIT`: true, `SELECT '\'; COMMIT`: true, "SELECT $$;$$; COMMIT": true, "SELECT $a$ $$ ; $a$; COMMIT": true,
	`SELECT 1 AS "a"";"; COMMIT`: true, "SELECT 1 AS e; COMMIT": true, "SELECT 'it''s'; COMMIT": true,

	"": false, ";": false, "SELECT 1": false, "SELECT 'COMMIT'": false, "SELECT 1; SELECT 2": false, "ROLLBACK TO a": false,
	"ROLLBACK TO SAVEPOINT a": false, "ROLLBACK WORK TO a": false, "rollback transaction to savepoint a": false, "SAVEPOINT a": false,
	"PREPARE x AS SELECT 1": false, "SELECT 1 AS commit": false, "SELECT '; COMMIT'": false, "SELECT $$; COMMIT$$": false,
	"SELECT $tag$; COMMIT; $$ $tag$": false, `SELECT 1 AS "; COMMIT"`: false, "SELECT 1 -- ; COMMIT": false, "SELECT 1 /* ; COMMIT */": false,
	`SELECT E'\'; COMMIT'`: false, "SELECT 1 AS committed": false, "SELECT $1; SELECT $2": false, "SELECT 'it''s; COMMIT'": false,
	"CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; END": true, // refused: its body ends like a transaction
}

func TestEnds(t *testing.T) {
	t.Parallel()
	for sql, want := range statements {
		if got := txguard.Ends(sql); got != want {
			t.Errorf("Ends(%q) = %t, want %t", sql, got, want)
		}
	}
}

func FuzzEnds(f *testing.F) {
	for sql := range statements {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		txguard.Ends(sql) // comes to an end, without a panic
		if !txguard.Ends("COMMIT;" + sql) {
			t.Errorf("what follows COMMIT hides it: %q", sql)
		}
	})
}
