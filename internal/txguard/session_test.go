package txguard

import "testing"

func TestChangesSession(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"SET search_path = tenant":                                             true,
		"set role tenant":                                                      true,
		"SET SESSION timezone TO 'UTC'":                                        true,
		"SET SESSION AUTHORIZATION other":                                      true,
		"SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY":                 true,
		"SELECT 1; /* a */ SET app.tenant = 'x'":                               true,
		"SELECT set_config('app.tenant', $1, false)":                           true,
		"SELECT pg_catalog.SET_CONFIG ( 'a.b' , f($1, true) /* c */ , FALSE )": true,
		"SELECT set_config('a.b', set_config('a.c', 'x', false), true)":        true,
		"SELECT set_config('a.b', 'x', 'f')":                                   true,

		"SET LOCAL ROLE tenant":                          false,
		"set local search_path = tenant":                 false,
		"SET TRANSACTION READ ONLY":                      false,
		"SET CONSTRAINTS ALL DEFERRED":                   false,
		"RESET ROLE":                                     false,
		"SELECT set_config('a.b', $1, true)":             false,
		"SELECT set_config('a.b', $1, $2)":               false,
		"SELECT set_config('a.b', 'false', true), false": false,
		"UPDATE t SET a = 1, b = false":                  false,
		"INSERT INTO t (a) VALUES ('SET role x')":        false,
		"SELECT 'set_config(1, 2, false)'":               false,
		"SELECT \"set_config\" FROM t WHERE (a = false)": false,
		"":   false,
		"se": false,
	} {
		if got := ChangesSession(sql); got != want {
			t.Errorf("ChangesSession(%q) = %t", sql, got)
		}
	}
}

func FuzzChangesSession(f *testing.F) {
	f.Add("SELECT set_config('a', (b), false)")
	f.Add("/* SET */ SET a = $$ x $$; set_config(")
	f.Fuzz(func(_ *testing.T, sql string) { ChangesSession(sql) })
}
