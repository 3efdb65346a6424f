package idemredis

import (
	"errors"
	"strconv"
	"testing"

	"github.com/sagamill/sagamill/idemkey"
)

// A hash that decodes is one that a script of ours could have written; anything
// else is a corrupt record, and is never answered by running again.
func FuzzDecodeRecord(f *testing.F) {
	header, _ := (&idemkey.Response{Status: 201}).MarshalHeader()
	f.Add("3", "sum", "v1", "token", "1", int64(0), int64(1), int64(0), "201", header, "body", "")
	f.Add("1", "sum", "v1", "token", "2", int64(30000), int64(1), int64(0), "", []byte(nil), "", "")
	f.Add("4", "", "", "t", "1", int64(0), int64(0), int64(1), "500", []byte{1}, "", "key")
	f.Add("2", "s", "a", "t", "99999999999", int64(-1), int64(-1), int64(2), "-1", []byte{}, "", "")
	f.Add("1", "sum", "v1", "token", "0", int64(0), int64(1), int64(0), "", []byte{}, "", "")
	f.Add("1", "sum", "v1", "", "1", int64(0), int64(1), int64(0), "", []byte{}, "", "")
	f.Fuzz(func(t *testing.T, state, sum, alg, token, attempt string, left, expires, expired int64, status string, header []byte, body, keyID string) {
		fields := []any{int64(0), state, sum, alg, token, attempt, left, expires, expired, status, string(header), body, keyID, left, left, int64(0)}
		for i := range fields { // a field that is missing is nil, and none may be of another type
			for _, damaged := range []any{nil, 1.5} {
				reply := append([]any{}, fields...)
				reply[i] = damaged
				_, _ = decodeRecord(reply)
			}
			if _, err := decodeRecord(fields[:i]); err == nil {
				t.Fatalf("a reply of %d fields is accepted", i)
			}
		}
		rec, err := decodeRecord(fields)
		if err != nil {
			if !errors.Is(err, idemkey.ErrRecordCorrupt) {
				t.Errorf("error %v, want ErrRecordCorrupt", err)
			}
			return
		}
		if got := strconv.Itoa(int(rec.State)); rec.State < 1 || rec.State > 5 || rec.Attempt < 1 || rec.token == "" || rec.token != token {
			t.Errorf("state %s, attempt %d, token %q are accepted", got, rec.Attempt, rec.token)
		}
		if kept := rec.State == idemkey.StateCompleted; kept && string(rec.Response.Body) != body || !kept && len(rec.Response.Body) > 0 {
			t.Errorf("body = %q in state %d", rec.Response.Body, rec.State)
		}
		for _, kind := range []idemkey.Kind{idemkey.KindReplay, idemkey.KindNotRetained} {
			if rec.State != idemkey.StateCompleted && rec.State != idemkey.StateTombstone {
				break
			}
			d, err := rec.decisionOf(kind)
			if err != nil && !errors.Is(err, idemkey.ErrRecordCorrupt) {
				t.Errorf("decide = %v, want ErrRecordCorrupt", err)
			}
			if err == nil && (d.Record.Response.Status < 200 || d.Record.Response.Status > 999) {
				t.Errorf("status %d would be replayed", d.Record.Response.Status)
			}
		}
	})
}
