package lineartest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// An Effect is one business row: which key's request wrote it, in which run of
// the handler. The table has no unique key, so that a second run would show.
type Effect struct{ Key, Run string }

// Audit compares the rows with the keys whose records are completed and with
// the clients' responses. It returns nil if each completed key has exactly
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

// AuditLeased compares the effects with the kept responses and the clients'
// responses, where effects cannot be rolled back. kept has each completed key's
// response body. It returns nil if all of this holds:
//
//   - each kept body is of a run that had its effect;
//   - replays, and responses of processes that did not hang, have that body;
//   - no key has more effects than operations whose client got a success or knows nothing.
func AuditLeased(history []Op, rows []Effect, kept map[string]string) error {
	var errs []error
	runs, allowed := make(map[string][]string), make(map[string]int)
	for _, row := range rows {
		runs[row.Key] = append(runs[row.Key], row.Run)
	}
	ran := func(key, response string) bool {
		return slices.ContainsFunc(runs[key], func(run string) bool { return strings.Contains(response, runMark+run+"\n") })
	}
	for key, body := range kept {
		if !ran(key, body) {
			errs = append(errs, fmt.Errorf("lineartest: key %s keeps the response of a run without an effect: %q", key, body))
		}
	}
	for _, op := range history {
		if op.Kind == Created || op.Kind == Unknown {
			allowed[op.Key]++
		}
		if op.Kind == Created && !ran(op.Key, op.Response) {
			errs = append(errs, fmt.Errorf("lineartest: response of a run without an effect: %v", op))
		}
		if op.Kind == Replayed || op.Kind == Created && !op.Stalled {
			if body, ok := kept[op.Key]; !ok || !strings.HasSuffix(op.Response, "\n"+body) {
				errs = append(errs, fmt.Errorf("lineartest: the key keeps another response, %q: %v", body, op))
			}
		}
	}
	for key, ids := range runs {
		if len(ids) > allowed[key] {
			errs = append(errs, fmt.Errorf("lineartest: key %s has effects %q, and %d operations to explain them", key, ids, allowed[key]))
		}
	}
	return errors.Join(errs...)
}
