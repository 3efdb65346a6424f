package sqlschema

import (
	"slices"
	"strings"
)

// reserved holds the words that PostgreSQL refuses as the name of a schema without quotes, in any version
// from 14 to 18: R and T of pg_get_keywords(), which are the words of appendix C that are "reserved", also
// those that "can be function or type". All these versions have the same list, except system_user, which is
// new in 16. [Check] refuses it on all versions, because such a schema would fail in an upgrade.
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
