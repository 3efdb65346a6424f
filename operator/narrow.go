package operator

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// narrowedScopes is how many scopes of a key a filter is narrowed to. A key of more scopes is searched in all of them.
	narrowedScopes = 100

	// An ended instance that took longer than longLived is in the index saga_long_lived, whose migration has the same limit.
	// A shorter one is found by its id if the clock of the process that began it is wrong by at most idSkew.
	longLived = 10 * time.Minute
	idSkew    = 2 * time.Minute
)

// narrowFilter adds to f what indexes say about it: the address of its id. It also returns the scopes of its key; none
// means that they are not known. It reports false if no instance can match, for which a statement would read the whole
// table.
func (n *Instances) narrowFilter(ctx context.Context, db querier, f *InstanceFilter) (scopes []string, known bool, err error) {
	if f.Saga != "" {
		if err := db.QueryRow(ctx, n.sql.knowsName, f.Saga).Scan(&known); err != nil || !known {
			return nil, false, err
		}
	}
	if f.ID != "" && f.Key == "" {
		at, found, err := findInstanceID(ctx, db, n.sql.findID, uuid.MustParse(f.ID)) // checked by instanceArgs
		if err != nil || !found || f.Scope != "" && f.Scope != at.Scope {
			return nil, false, err
		}
		f.Scope, f.Key = at.Scope, at.Key
	}
	if f.Key == "" || f.Scope != "" {
		return nil, true, nil
	}
	rows, _ := db.Query(ctx, n.sql.listScopesOfKey, f.Key, narrowedScopes+1)
	if scopes, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(scopes) > narrowedScopes {
		return nil, err == nil, err
	}
	return scopes, len(scopes) > 0, nil
}

// findInstanceID finds the address of the instance with an id. Ids of instances are UUIDv7: no other UUID is one.
func findInstanceID(ctx context.Context, db querier, statement string, id uuid.UUID) (at Address, found bool, err error) {
	if id.Version() != 7 {
		return at, false, nil
	}
	began := time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16))
	err = db.QueryRow(ctx, statement, plannedAnew, id, began.Add(-idSkew), began.Add(longLived+idSkew)).Scan(&at.Scope, &at.Key, &at.Path)
	if errors.Is(err, pgx.ErrNoRows) {
		return at, false, nil
	}
	return at, err == nil, err
}
