package migrations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"
)

// errOtherFile reports that a migration with this number was applied from a file with another name: most likely by another
// service that has the same name. Then the tables are not those that this service expects.
var errOtherFile = errors.New("another service of this name has used the schema, or the file was renamed: give one of the services another name, or the file its old name")

// checkNames returns an error if a migration of files was applied from a file with another name. Versions without a
// recorded name pass: sagamill has recorded none before.
func (a state) checkNames(files []string) error {
	if a.names == "" {
		return nil
	}
	var names map[string]string // by number
	if err := json.Unmarshal([]byte(a.names), &names); err != nil {
		return fmt.Errorf("names of the applied migrations: %w", err)
	}
	for i := range min(int(a.version), len(files)) {
		if was := names[strconv.Itoa(i+1)]; was != "" && was != files[i] {
			return fmt.Errorf("the service's migration %d was applied from %s, and is %s now: %w", i+1, was, files[i], errOtherFile)
		}
	}
	return nil
}

// sqlAddNames is for a version table without names.
const sqlAddNames = `ALTER TABLE %s ADD COLUMN IF NOT EXISTS names jsonb`

// sqlRecordName records the name of a migration, in the transaction of the migration. It follows the text of the file, of
// which the last statement may lack its semicolon.
const sqlRecordName = `
;
UPDATE %s SET names = coalesce(names, '{}') || jsonb_build_object('%d', '%s')`

// recordNames makes each migration record the name of its file, with its version.
func (s set) recordNames(ctx context.Context, conn *pgx.Conn, m *migrate.Migrator, schema string, at state) error {
	files, err := migrate.FindMigrations(s.files)
	if err != nil {
		return err
	}
	table := schema + "." + s.version
	for i, step := range m.Migrations {
		step.UpSQL += fmt.Sprintf(sqlRecordName, table, i+1, strings.ReplaceAll(files[i], "'", "''"))
	}
	if at.names == "" {
		_, err = conn.Exec(ctx, fmt.Sprintf(sqlAddNames, table))
	}
	return err
}
