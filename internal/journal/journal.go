// Package journal writes the row that says who changed which stored messages, how and why. The row is part of
// the transaction of the change: either both are stored or neither.
package journal

import (
	"encoding/json"
	"strings"

	"github.com/sagamill/sagamill/internal/cleantext"
)

// SQLInsert writes the row. An empty name stands for the user of the session.
const SQLInsert = `
INSERT INTO {schema}.operator_journal (who, verb, what, ids, why)
VALUES (coalesce(nullif($1, ''), session_user), $2, $3, $4, $5)`

// The most bytes that are stored of a name and of a reason.
const (
	maxBy  = 128
	maxWhy = 1000
)

// Args returns the arguments of SQLInsert: by did verb to the messages ids, which the filter what selected.
func Args(by, why, verb string, what map[string]string, ids []int64) []any {
	text, err := json.Marshal(what)
	if err != nil {
		panic(err) // cannot happen: a map of strings can be encoded
	}
	return []any{cleantext.Clip(strings.TrimSpace(by), maxBy), verb, string(text), ids, cleantext.Clip(why, maxWhy)}
}

// What returns pairs of names and values as a map, without the pairs whose value is empty.
func What(pairs ...string) map[string]string {
	what := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if value := pairs[i+1]; value != "" {
			what[pairs[i]] = cleantext.Clip(value, maxWhy)
		}
	}
	return what
}
