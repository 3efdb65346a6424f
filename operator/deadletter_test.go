package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
)

// aFew leaves letters: 1 a dead action, 2 an unreadable message of an hour ago, 3 a
// compensation of an action that is dead, 4 an action that is retrying.
func (f *letterFixture) aFew(t *testing.T) {
	t.Helper()
	msg := act("k")
	msg.UUID = "no\x00uuid"
	handle(t, f.c, msg, saying(act("l"), "{"), undo("k"))
	f.exec(t, "UPDATE {schema}.parked SET last_at = last_at - interval '1 h' WHERE id = 2")
	failing := func(context.Context, pgx.Tx, consumer.Message[payment], consumer.Emit) error { panic("no way") }
	handle(t, f.consumer(t, consumer.Options{}, f.step(failing, nil)), act("m"))
}

func TestDeadLettersAreFiltered(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.aFew(t)
	for name, tt := range map[string]struct {
		filter Filter
		want   string
	}{
		"all":          {Filter{}, "1 2 3"},
		"retrying":     {Filter{State: StateRetrying}, "4"},
		"ids":          {Filter{IDs: []int64{3, 4, 1}}, "1 3"},
		"step":         {Filter{Step: "process-payment"}, "1 3"},
		"kind":         {Filter{Kind: "unknown"}, "2"},
		"reason":       {Filter{Reason: consumer.ReasonTerminal}, "1"},
		"error":        {Filter{Error: "not known whether"}, "3"},
		"scope":        {Filter{Scope: "tenant", Key: "k"}, "1 3"},
		"other scope":  {Filter{Scope: "tenan"}, ""},
		"topic":        {Filter{Topic: "unpay"}, "3"},
		"message":      {Filter{MessageID: "no\x00uuid"}, "1"},
		"older":        {Filter{Older: time.Minute}, "2"},
		"newer":        {Filter{Newer: time.Minute}, "1 3"},
		"no such age":  {Filter{Older: time.Minute, Newer: time.Second}, ""},
		"two of them":  {Filter{Topic: "pay", Kind: "action"}, "1"},
		"and a state ": {Filter{State: StateRetrying, Topic: "unpay"}, ""},
	} {
		letters, err := f.letters.List(t.Context(), tt.filter, 0, 10)
		var ids []string
		for _, l := range letters {
			ids = append(ids, fmt.Sprint(l.ID))
		}
		if got := strings.Join(ids, " "); err != nil || got != tt.want {
			t.Errorf("%s: List = %q, %v; want %q", name, got, err, tt.want)
		}
		if n, err := f.letters.Count(t.Context(), tt.filter); err != nil || n != len(ids) {
			t.Errorf("%s: Count = %d, %v; want %d", name, n, err, len(ids))
		}
	}
	if letters, err := f.letters.List(t.Context(), Filter{}, 1, 1); err != nil || len(letters) != 1 || letters[0].ID != 2 {
		t.Errorf("List behind 1 = %+v, %v", letters, err)
	}
	for _, wrong := range []Filter{{Older: -1}, {Newer: -1}, {State: "done"}} {
		if _, err := f.letters.List(t.Context(), wrong, 0, 1); err == nil {
			t.Errorf("List of %+v = nil error", wrong)
		}
	}
}

func TestGetReturnsAllThatIsKnown(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.aFew(t)
	f.exec(t, "UPDATE {schema}.parked SET header_values[1] = '\\xff00', in_doubt = true WHERE id = 4")
	got, err := f.letters.Get(t.Context(), 4)
	if err != nil {
		t.Fatal(err)
	}
	want := DeadLetter{
		ID: 4, Side: Inbox, State: StateRetrying, Kind: "action", Scope: "tenant", Key: "m", Step: "process-payment", Topic: "pay", MessageID: got.MessageID,
		Headers: map[string]string{"type": "\xff\x00", outbox.HeaderKey: "m:process-payment", outbox.HeaderScope: "tenant"},
		Payload: []byte(`{"amount":1}`), Size: 12, Reason: consumer.ReasonFailed, Error: "consumer: the handler panicked: no way", Attempts: 1, InDoubt: true,
		Fingerprint: f.fingerprint(t, "consumer: the handler panicked: no way"),
	}
	ignored := []cmp.Option{cmpopts.IgnoreFields(DeadLetter{}, "FirstAt", "LastAt", "DueAt", "Stack"), cmpopts.IgnoreUnexported(DeadLetter{})}
	if diff := cmp.Diff(want, got, ignored...); diff != "" {
		t.Errorf("Get (-want +got):\n%s", diff)
	}
	if got.DueAt.IsZero() || got.FirstAt.IsZero() || got.LastAt.IsZero() || !strings.Contains(got.Stack, "aFew") {
		t.Errorf("Get lacks a time or the stack: %+v", got)
	}
	if got, err := f.letters.Get(t.Context(), 1); err != nil || got.MessageID != "no\x00uuid" || !got.DueAt.IsZero() {
		t.Errorf("Get of a dead letter = %+v, %v", got, err)
	}
	if listed, err := f.letters.List(t.Context(), Filter{State: StateRetrying}, 0, 1); err != nil || listed[0].Payload != nil || listed[0].Stack != "" || listed[0].Size != 12 {
		t.Errorf("List reads payload or stack: %+v, %v", listed, err)
	}
	for limit, want := range map[int]string{-1: "", 0: "", 5: `{"amo`, 12: `{"amount":1}`, 1000: `{"amount":1}`} {
		if got, err := f.letters.GetLimited(t.Context(), 4, limit); err != nil || string(got.Payload) != want || got.Size != 12 || got.Stack == "" {
			t.Errorf("%d bytes of the payload: %q of %d, %v", limit, got.Payload, got.Size, err)
		}
	}
	if _, err := f.letters.Get(t.Context(), 99); !errors.Is(err, ErrNoDeadLetter) {
		t.Errorf("Get of none = %v", err)
	}
}

// What a message failed with before stays known when it is redriven, rejected by a redrive, and kept before it is discarded.
func TestALetterKeepsItsEarlierFailures(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	handle(t, f.c, act("k"))
	first, err := f.letters.Get(t.Context(), 1)
	if err != nil || len(first.Earlier) != 0 {
		t.Fatalf("after one failure Get = %+v, %v", first, err)
	}
	f.redriveAndFail(t)
	want := []Failure{{At: first.LastAt, Reason: consumer.ReasonTerminal, Error: first.Error}}
	again, err := f.letters.Get(t.Context(), 1)
	if diff := cmp.Diff(want, again.Earlier); err != nil || diff != "" {
		t.Errorf("%v, earlier failures (-want +got):\n%s", err, diff)
	}
	f.exec(t, "UPDATE {schema}.inbox SET digest = sha256('another')")
	if _, err := f.letters.Redrive(t.Context(), Filter{}, nil); err != nil {
		t.Fatal(err)
	}
	want = append(want, Failure{At: again.LastAt, Reason: consumer.ReasonTerminal, Error: again.Error})
	rejected, err := f.letters.GetLimited(t.Context(), 1, 1)
	if diff := cmp.Diff(want, rejected.Earlier); err != nil || diff != "" || rejected.Reason != consumer.ReasonKeyReused {
		t.Errorf("%v, reason %s, earlier failures (-want +got):\n%s", err, rejected.Reason, diff)
	}
	if listed, err := f.letters.List(t.Context(), Filter{}, 0, 1); err != nil || listed[0].Earlier != nil {
		t.Errorf("List reads earlier failures: %+v, %v", listed, err)
	}
	previewed := 0
	if _, err := f.letters.Preview(t.Context(), Filter{}, nil, func(p Preview) error {
		if previewed++; p.Earlier != nil {
			t.Errorf("Preview reads earlier failures: %+v", p.Earlier)
		}
		return nil
	}); err != nil || previewed != 1 {
		t.Errorf("Preview saw %d letters, %v; want 1", previewed, err)
	}
	n, err := f.letters.Discard(t.Context(), Filter{}, func(l DeadLetter) error {
		if diff := cmp.Diff(want, l.Earlier); diff != "" {
			t.Errorf("a kept letter has other earlier failures (-want +got):\n%s", diff)
		}
		return nil
	})
	if n != 1 || err != nil {
		t.Errorf("Discard = %d, %v", n, err)
	}
}

// During a call, and until it has settled, the last failure has been appended to the earlier ones.
func TestTheLastFailureIsNoEarlierOne(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	handle(t, f.c, act("k"))
	f.exec(t, `UPDATE {schema}.parked SET error = 'second', earlier_failures = '[{"reason": "failed", "error": "first"}, {"reason": "failed", "error": "second"}]'`)
	for reason, want := range map[consumer.Reason]int{consumer.ReasonCalling: 1, consumer.ReasonUnsettled: 1, consumer.ReasonFailed: 2} {
		f.exec(t, "UPDATE {schema}.parked SET reason = $1", reason)
		if got, err := f.letters.Get(t.Context(), 1); err != nil || len(got.Earlier) != want || got.Earlier[0].Error != "first" {
			t.Errorf("%s: earlier failures %+v, %v; want %d", reason, got.Earlier, err, want)
		}
	}
}

// redriveAndFail redrives all dead letters, which then fail as before.
func (f *letterFixture) redriveAndFail(t *testing.T) {
	t.Helper()
	if _, err := f.letters.Redrive(t.Context(), Filter{}, nil); err != nil {
		t.Fatal(err)
	}
	f.runDue(t, f.c)
}

// A discarded letter stays in the inbox, so that no further copy runs.
func TestDiscardKeepsTheStepDead(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.aFew(t)
	if n, err := f.letters.Discard(t.Context(), Filter{IDs: []int64{1, 4, 99}}, nil); n != 1 || err != nil {
		t.Errorf("Discard = %d, %v; want 1: the other is retrying", n, err)
	}
	f.working(t, act("k"))
	if got, want := f.parked(t), "dead unknown undecodable 0; dead compensation action-dead 0; retrying action failed 1"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
	if got := f.texts(t, "SELECT state FROM {schema}.inbox WHERE key = 'k'"); got[0] != "dead" || f.effects(t) != "" {
		t.Errorf("the step is %q, effects %q; want dead and none", got, f.effects(t))
	}
	if _, err := f.letters.Discard(t.Context(), Filter{State: StateRetrying}, nil); err == nil {
		t.Error("retrying messages were discarded")
	}
	if _, err := f.letters.Redrive(t.Context(), Filter{State: StateRetrying}, nil); err == nil {
		t.Error("retrying messages were redriven")
	}
	if _, err := f.letters.Preview(t.Context(), Filter{State: StateRetrying}, nil, nil); err == nil {
		t.Error("retrying messages were planned")
	}
	if n, err := f.letters.Discard(t.Context(), Filter{Topic: "pay"}, nil); n != 1 || err != nil {
		t.Errorf("DiscardAll of a topic = %d, %v; want 1", n, err)
	}
}

// No letter is discarded before keep has returned for it.
func TestDiscardedLettersAreKeptFirst(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.manyDead(t, 2*keepBatch+1)
	full := errors.New("disk full")
	seen := 0
	n, err := f.letters.Discard(t.Context(), Filter{}, func(l DeadLetter) error {
		if string(l.Payload) != `{"amount":1}` {
			t.Errorf("letter %d is shown with payload %q", l.ID, l.Payload)
		}
		if seen++; seen > keepBatch+3 {
			return full
		}
		return nil
	})
	if n != keepBatch || !errors.Is(err, full) {
		t.Errorf("DiscardAll = %d, %v; want the first batch and what keep says", n, err)
	}
	n, err = f.letters.Discard(t.Context(), Filter{}, func(DeadLetter) error { return nil })
	if left, _ := f.letters.Count(t.Context(), Filter{}); n != keepBatch+1 || err != nil || left != 0 {
		t.Errorf("said again: %d, %v, %d left", n, err, left)
	}
}

func TestEdit(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		id   int64
		edit Edit
		want error
	}{
		"payload":            {1, Edit{Payload: []byte{}}, nil},
		"headers":            {1, Edit{Set: map[string]string{"x": "\xff", "type": "pay"}, Remove: []string{"x-own"}}, nil},
		"key without a step": {2, Edit{Set: map[string]string{outbox.HeaderKey: "new:process-payment"}}, nil},
		"key":                {1, Edit{Set: map[string]string{outbox.HeaderKey: "k:process-payment"}}, ErrIdentity},
		"scope":              {3, Edit{Remove: []string{outbox.HeaderScope}}, ErrIdentity},
		"retrying":           {4, Edit{Payload: []byte("{}")}, ErrNoDeadLetter},
		"none":               {99, Edit{Payload: []byte("{}")}, ErrNoDeadLetter},
		"nothing":            {1, Edit{}, ErrInvalidEdit},
		"nobody":             {1, Edit{By: " \x1b", Payload: []byte("{}")}, ErrInvalidEdit},
		"the trace":          {1, Edit{Set: map[string]string{HeaderEdited: ""}}, ErrInvalidEdit},
		"no trace":           {1, Edit{Remove: []string{HeaderEdited}}, ErrInvalidEdit},
		"no header at all":   {1, Edit{Remove: []string{"nothere", "nor this"}}, ErrInvalidEdit},
		"the type that was":  {1, Edit{Set: map[string]string{HeaderTypeWas: "x"}}, ErrInvalidEdit},
		"redelivered":        {1, Edit{Set: map[string]string{outbox.PropertyRedelivered: "true"}}, ErrInvalidEdit},
		"no name":            {1, Edit{Set: map[string]string{"": "x"}}, ErrInvalidEdit},
		"large payload":      {1, Edit{Payload: make([]byte, outbox.MaxPayload+1)}, ErrInvalidEdit},
		"large header":       {1, Edit{Set: map[string]string{"x": strings.Repeat("x", outbox.MaxHeaderBytes)}}, ErrInvalidEdit},
		"many headers":       {1, Edit{Set: manyHeaders(2 * outbox.MaxHeaders)}, ErrInvalidEdit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newLetterFixture(t)
			f.aFew(t)
			before := f.tables(t)
			if tt.edit.By == "" {
				tt.edit.By = "tester"
			}
			was, is, err := f.letters.Edit(t.Context(), tt.id, tt.edit)
			if !errors.Is(err, tt.want) {
				t.Fatalf("Edit = %v, want %v", err, tt.want)
			}
			if err != nil {
				if diff := cmp.Diff(before, f.tables(t)); diff != "" {
					t.Errorf("a refused edit has changed something:\n%s", diff)
				}
				return
			}
			stored, err := f.letters.Get(t.Context(), tt.id)
			if diff := cmp.Diff(is, stored, cmpopts.IgnoreUnexported(DeadLetter{}), cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Errorf("stored (-returned +stored): %v\n%s", err, diff)
			}
			if was.Edited || !is.Edited || !strings.HasPrefix(is.Headers.Get(HeaderEdited), "edit 1 at 2") || !strings.HasSuffix(is.Headers.Get(HeaderEdited), " by tester") {
				t.Errorf("was %+v, is %+v", was, is)
			}
		})
	}
}

func manyHeaders(n int) map[string]string {
	set := map[string]string{}
	for i := range n {
		set[fmt.Sprint("x-", i)] = ""
	}
	return set
}

// An edited letter keeps the digest of its first payload, even after several edits.
func TestEditsKeepTheFirstDigest(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	handle(t, f.c, act("k"))
	want := f.texts(t, "SELECT sha256(payload)::text FROM {schema}.parked")
	for i := range 3 {
		f.edit(t, Edit{Payload: fmt.Append(nil, i), Set: map[string]string{"x": fmt.Sprint(i)}})
		if got := f.texts(t, "SELECT digest::text FROM {schema}.parked"); !cmp.Equal(got, want) {
			t.Errorf("after edit %d the digest is %q, want %q", i, got, want)
		}
	}
	l, err := f.letters.Get(t.Context(), 1)
	if err != nil || string(l.Payload) != "2" || l.Headers.Get("x") != "2" || !strings.HasPrefix(l.Headers.Get(HeaderEdited), "edit 3 at ") {
		t.Errorf("after three edits %+v, %v", l, err)
	}
}

// Who has not said a name is the session's login, and what several transactions have done
// has a row of each.
func TestTheJournalNamesThePerson(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.manyDead(t, 3)
	ann, err := NewDeadLetters(f.pool, Inbox, &Options{Schema: f.schema, By: "ann", Why: "a typo"})
	if err != nil {
		t.Fatal(err)
	}
	if _, is, err := ann.Edit(t.Context(), 1, Edit{Set: map[string]string{"x-own": "1"}}); err != nil || !strings.HasSuffix(is.Headers.Get(HeaderEdited), " by ann") {
		t.Errorf("Edit by who has said a name: %v, %v", is.Headers, err)
	}
	if _, err := f.letters.Redrive(t.Context(), Filter{}, &RedriveOptions{Rate: 1000, Force: true}); err != nil {
		t.Error(err)
	}
	if n, err := f.letters.RetryNow(t.Context(), Filter{IDs: []int64{2}}); n != 1 || err != nil {
		t.Errorf("RetryNow = %d, %v", n, err)
	}
	got := f.texts(t, "SELECT concat_ws(' ', CASE who WHEN session_user THEN 'login' ELSE who END, verb, ids, why) FROM {schema}.operator_journal ORDER BY id")
	if want := []string{"ann dead edit {1} a typo", "login dead redrive {1,2,3} ", "login dead retry {2} "}; !cmp.Equal(want, got) {
		t.Errorf("the journal says %q, want %q", got, want)
	}
}

// A part of an error is compared as it is: its characters are no wildcards.
func TestAPartOfAnErrorIsNoPattern(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	errs := []string{`100% of a_b`, `100 of aXb`, `path C:\dir`, `path C:dir`, ``}
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, topic, message_id, header_names, header_values, payload, reason, error, due_at)
		SELECT 'dead', 'unknown', 't', convert_to('m' || i, 'UTF8'), '{}', '{}', '', 'undecodable', e, now() FROM unnest($1::text[]) WITH ORDINALITY u (e, i)`, errs)
	f.exec(t, `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload, state, due_at, attempts, reason, refused_at)
		SELECT i, gen_random_uuid(), 't', '', 'acme', 'k', '', '', '', '', '', '', '', 'dead', now(), 9, e, now() FROM unnest($1::text[]) WITH ORDINALITY u (e, i)`, errs)
	for part, want := range map[string]int{"": 5, "100%": 1, "%": 1, "a_b": 1, "_": 1, `\`: 1, `C:\dir`: 1, "C:": 2, "100": 2, `\%`: 0, "Of": 0} {
		for _, side := range []Side{Inbox, Outbox} {
			d, err := NewDeadLetters(f.pool, side, &Options{Schema: f.schema})
			if err != nil {
				t.Fatal(err)
			}
			found, err := d.List(t.Context(), Filter{Error: part}, 0, 10)
			count, err2 := d.Count(t.Context(), Filter{Error: part})
			if err := errors.Join(err, err2); err != nil || len(found) != want || count != want {
				t.Errorf("%s, %q: %d listed, %d counted, %v; want %d", side, part, len(found), count, err, want)
			}
		}
	}
}
