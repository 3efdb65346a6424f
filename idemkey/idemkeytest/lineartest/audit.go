package lineartest

import (
	"errors"
	"fmt"
	"strings"
)

// An Effect is one business row: which key's request wrote it, in which run of
// the handler. The table has no unique key, so that a second run would show.
type Effect struct{ Key, Run string }

// Audit compares the rows with the keys whose records are completed and with
// what the clients were told. It returns nil if each completed key has exactly
// one row, no other key has any, and every response comes from its key's row.
func Audit(history []Op, rows []Effect, completed []string) error {
	var errs []error
	runs := make(map[string][]string)
	for _, row := range rows {
		runs[row.Key] = append(runs[row.Key], row.Run)
	}
	done := make(map[string]bool)
	for _, key := range completed {
		done[key] = true
		if n := len(runs[key]); n != 1 {
			errs = append(errs, fmt.Errorf("lineartest: completed key %s has %d business rows: %q", key, n, runs[key]))
		}
	}
	for key, ids := range runs {
		if !done[key] {
			errs = append(errs, fmt.Errorf("lineartest: key %s has business rows %q and is not completed", key, ids))
		}
	}
	for _, op := range history {
		if op.Kind != Created && op.Kind != Replayed {
			continue
		}
		if ids := runs[op.Key]; !done[op.Key] || len(ids) != 1 || !strings.Contains(op.Response, runMark+ids[0]+"\n") {
			errs = append(errs, fmt.Errorf("lineartest: completed: %t, business rows %q: %v", done[op.Key], ids, op))
		}
	}
	return errors.Join(errs...)
}
