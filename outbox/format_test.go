package outbox

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// A goldenMessage is one of testdata/format-1.json: a message of version 1 of the
// format as it is published, and how RabbitMQ gets it.
type goldenMessage struct {
	Name, Topic, ID string
	Metadata        map[string]string
	Payload         string
}

func readGolden(t *testing.T) (all []goldenMessage) {
	t.Helper()
	raw, err := os.ReadFile("testdata/format-1.json")
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Messages are written as they always were in version 1. Who has to change the file
// has changed the format: a reader that misreads what is written now needs another
// [Format] in [HeaderFormat].
func TestFormat1IsWritten(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 16, 24, 37, 123456000, time.UTC)
	rows := map[string]*row{
		"action": {
			MessageID: uuid.MustParse("0192f0c1-2233-7000-8000-000000000001"), Topic: "pay", Type: "pay", Scope: "acme", Key: "order:42", Step: "process-payment",
			CorrelationID: "0192f0c1-2233-7000-8000-000000000000", CausationID: "0192f0c1-2233-7000-8000-00000000000f", ContentType: "application/json",
			Headers: []byte(`{"x-own": "Größe", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`), Payload: []byte(`{"amount":7}`), CreatedAt: at,
		},
		"one of several, the first of its saga": {
			MessageID: uuid.MustParse("0192f0c1-2233-7000-8000-000000000002"), Topic: "pay", Type: "pay", Scope: "acme", Key: "order:43", Step: "process-payment", N: "2.d",
			CorrelationID: "0192f0c1-2233-7000-8000-000000000002", ContentType: "application/json", Payload: []byte(`{"amount":8}`), CreatedAt: at.Truncate(time.Second).In(time.FixedZone("", 7200)),
		},
	}
	golden := readGolden(t)
	if len(golden) != len(rows) {
		t.Fatalf("%d messages, want %d", len(golden), len(rows))
	}
	for _, want := range golden {
		m := rows[want.Name]
		msg, err := m.renderMessage()
		if err != nil {
			t.Fatal(err)
		}
		got := goldenMessage{want.Name, m.Topic, msg.UUID, msg.Metadata, string(msg.Payload)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-version 1 +written):\n%s", want.Name, diff)
		}
	}
}
