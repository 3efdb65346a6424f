// Package journal is the row that tells who has done what to stored messages, and why.
// What changes them on behalf of a person writes it in the same transaction, so that
// neither is there without the other.
package journal

import (
	"encoding/json"
	"strings"

	"github.com/sagamill/sagamill/internal/cleantext"
)

// SQLInsert writes the row. Who does not say a name has that of the session.
const SQLInsert = `
INSERT INTO {schema}.operator_journal (who, verb, what, ids, why)
VALUES (coalesce(nullif($1, ''), session_user), $2, $3, $4, $5)`

// How many bytes are kept of a name and of a reason.
const (
	maxBy  = 128
	maxWhy = 1000
)

// Args are those of SQLInsert: by did verb to the messages ids, which what picked.
func Args(by, why, verb string, what map[string]string, ids []int64) []any {
	text, err := json.Marshal(what)
	if err != nil {
		panic(err) // strings
	}
	return []any{cleantext.Clip(strings.TrimSpace(by), maxBy), verb, string(text), ids, cleantext.Clip(why, maxWhy)}
}

// What returns pairs of names and values, without those that say nothing.
func What(pairs ...string) map[string]string {
	what := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if value := pairs[i+1]; value != "" {
			what[pairs[i]] = cleantext.Clip(value, maxWhy)
		}
	}
	return what
}
