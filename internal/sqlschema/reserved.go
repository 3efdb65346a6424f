package sqlschema

import (
	"slices"
	"strings"
)

// reserved holds the words that no version of PostgreSQL from 14 to 18 takes as the
// name of a schema without quotes: R and T of pg_get_keywords(), those of appendix C
// that are "reserved", also where they "can be function or type". All are common to
// these versions but for system_user, which is new in 16. A name that works on one
// version only would fail in an upgrade, so that each is refused on all.
var reserved = strings.Fields(`
	all analyse analyze and any array as asc asymmetric authorization binary both case cast
	check collate collation column concurrently constraint create cross current_catalog
	current_date current_role current_schema current_time current_timestamp current_user
	default deferrable desc distinct do else end except false fetch for foreign freeze from
	full grant group having ilike in initially inner intersect into is isnull join lateral
	leading left like limit localtime localtimestamp natural not notnull null offset on only
	or order outer overlaps placing primary references returning right select session_user
	similar some symmetric system_user table tablesample then to trailing true union unique
	user using variadic verbose when where window with`)

// isReserved reports whether name is one of PostgreSQL's reserved words.
func isReserved(name string) bool { return slices.Contains(reserved, name) }
