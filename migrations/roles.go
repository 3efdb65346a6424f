package migrations

import (
	"cmp"
	_ "embed"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"text/template"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// sqlRoles lists all tables that the migrations create: a new table needs its place there too.
//
//go:embed roles.sql
var sqlRoles string

// DefaultPrefix is the prefix of the names of roles if the caller gives "".
const DefaultPrefix = "sagamill"

// grantees are the roles that get rights on single tables; the owner has all rights.
var grantees = []string{"entry", "relay", "consumer", "operator", "reader"}

// Roles writes SQL to w, in the form that psql runs. It creates the roles of the processes that use schema,
// and gives each role the rights that it needs and no others. The roles are prefix_owner, which then owns the
// schema and its tables, prefix_entry, prefix_relay, prefix_consumer, prefix_operator and prefix_reader. None
// can log in. The SQL says how a login role becomes a member, and who may run it.
//
// The SQL is one transaction, and may run again at any time. Afterwards these roles have the rights on this
// module's tables that the SQL lists, no matter what they had before. It takes the rights of PUBLIC away, and
// changes those of no other role. It fails on a schema that has had fewer migrations than this binary knows.
// Run it again after the next migration, as the newer binary prints it: until then only the owner may use the
// new tables.
//
// Roles belong to the whole cluster, so that services with different schemas need different prefixes. An
// empty schema or prefix means sagamill. Parts are the parts of the schema, none for all: the SQL fails on a
// schema with others. Roles returns the errors of w, and an error for a schema or prefix that is not a plain
// identifier, or for an unknown part.
func Roles(w io.Writer, schema, prefix string, parts ...Part) error {
	schema, prefix = cmp.Or(schema, DefaultSchema), cmp.Or(prefix, DefaultPrefix)
	if err := sqlschema.Check(schema); err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	var roles []string
	for _, name := range grantees {
		role := prefix + "_" + name
		if sqlschema.Check(role) != nil {
			return fmt.Errorf("migrations: prefix %q and role %q together are no plain identifier: use another prefix", prefix, role)
		}
		roles = append(roles, role)
	}
	wanted, err := resolveParts(parts)
	if err != nil {
		return err
	}
	known, err := fs.Glob(files, "*.sql")
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	var sql strings.Builder
	if err := template.Must(template.New("roles.sql").Parse(sqlRoles)).Execute(&sql, templateData(wanted)); err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	_, err = strings.NewReplacer("{schema}", schema, "{prefix}", prefix, "{roles}", strings.Join(roles, ", "),
		"{version}", strconv.Itoa(len(known)),
		"{parts}", recordParts(wanted)).WriteString(w, sql.String())
	return err
}
