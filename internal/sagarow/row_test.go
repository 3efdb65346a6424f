package sagarow

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/internal/machine"
)

// A message that is stored in a progress comes back byte for byte, whatever stands for it in between.
func TestMessagesKeepTheirBytes(t *testing.T) {
	t.Parallel()
	const state = `{"order":"o-1"}`
	for _, tt := range []struct{ name, message, want string }{
		{"the state", state, `"sent_state":true`},
		{"JSON", `{"b":1,"a":[true,"x"]}`, `"body":{"b":1,"a":[true,"x"]}`},
		{"JSON with spaces", `{"b": 1}`, `"message":"`},
		{"JSON that is escaped", `{"a":"<b>"}`, `"message":"`},
		{"JSON that is escaped already", `{"a":"\u003cb\u003e"}`, `"body":{"a":"\u003cb\u003e"}`},
		{"two names", `{"a":1,"a":2}`, `"body":{"a":1,"a":2}`},
		{"a large number", `12345678901234567890.10`, `"body":12345678901234567890.10`},
		{"null", `null`, `"body":null`},
		{"JSON that is nested as deeply as it may be", strings.Repeat("[", 10000) + strings.Repeat("]", 10000), `"message":"`},
		{"no JSON", "\x00\xff{", `"message":"`},
		{"JSON that is no UTF-8", "\"\xff\"", `"message":"`},
		{"none", "", `{"state":"running"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			row := &Row{}
			row.State = []byte(state)
			row.Progress.Steps = []machine.Step{{State: machine.InFlight}, {State: machine.Undoing, Message: []byte(`{"beside":1}`)}}
			if tt.message != "" {
				row.Progress.Steps[0].Message = []byte(tt.message)
			}
			before, err := json.Marshal(row.Progress)
			if err != nil {
				t.Fatal(err)
			}
			stored, err := json.Marshal(row.shortenMessages())
			if err != nil || !strings.Contains(string(stored), tt.want) {
				t.Errorf("stored as %s, %v; want %s in it", stored, err, tt.want)
			}
			if after, err := json.Marshal(row.Progress); err != nil || string(after) != string(before) {
				t.Errorf("storing changed the progress of the row to %s, %v; want %s", after, err, before)
			}
			read := &Row{}
			read.State = []byte(state)
			if err := json.Unmarshal(stored, &read.Progress); err != nil {
				t.Fatal(err)
			}
			read.restoreMessages()
			if diff := cmp.Diff(row.Progress, read.Progress); diff != "" {
				t.Errorf("after the row is stored and read (-before +after):\n%s", diff)
			}
		})
	}
}
