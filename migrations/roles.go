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

// sqlRoles takes all tables into account that the migrations make: a new table has its
// place there too.
//
//go:embed roles.sql
var sqlRoles string

// DefaultPrefix is what the names of roles begin with if the caller gives "".
const DefaultPrefix = "sagamill"

// grantees are the roles that are given rights; the owner has all.
var grantees = []string{"entry", "relay", "consumer", "operator", "reader"}

// Roles writes SQL to w, in the form that psql runs, which makes the roles of the
// processes that use schema, and gives each what it needs and nothing else:
// prefix_owner, which owns the schema and its tables from then on, prefix_entry,
// prefix_relay, prefix_consumer, prefix_operator and prefix_reader. None can log in.
// The SQL says how a login role becomes a member, and who may run it.
//
// It is one transaction, and may be run again at any time: the rights of these roles on
// this module's tables are afterwards what it says, whatever they were before. It changes
// no others, but takes those of PUBLIC away. It refuses a schema that has had fewer
// migrations than this binary knows. Run it again after the next migration, as the newer
// binary prints it: until then only the owner may use what is new.
//
// Roles belong to the whole cluster, so that services with schemas of their own need
// prefixes of their own. An empty schema or prefix is sagamill. The only errors are those
// of w, of a schema or prefix that is no plain identifier, and of a part that does not
// exist. Parts are those of the schema, none for all: the SQL refuses a schema with others.
func Roles(w io.Writer, schema, prefix string, parts ...Part) error {
	schema, prefix = cmp.Or(schema, DefaultSchema), cmp.Or(prefix, DefaultPrefix)
	if err := sqlschema.Check(schema); err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	var roles []string
	for _, name := range grantees {
		role := prefix + "_" + name
		if sqlschema.Check(role) != nil {
			return fmt.Errorf("migrations: prefix %q makes no plain identifier of %q", prefix, role)
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
