package outboxsql

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// complete are columns as messages have them, with the row that stores them.
var complete = map[string]struct{ message, row Columns }{
	"all derived": {
		Columns{Type: "t", Correlation: "0190a5e4-0000-7000-8000-000000000001", ContentType: DefaultContentType, OrderingKey: "s\x1fk"}, Columns{}},
	"a correlation that is the cause": {
		Columns{Causation: "c", Type: "t", Correlation: "c", ContentType: DefaultContentType, OrderingKey: "s\x1fk"}, Columns{Causation: "c"}},
	"an own correlation beside a cause": {
		Columns{Causation: "c", Type: "t", Correlation: "0190a5e4-0000-7000-8000-000000000001", ContentType: DefaultContentType, OrderingKey: "s\x1fk"},
		Columns{Causation: "c", Correlation: "0190a5e4-0000-7000-8000-000000000001"}},
	"none derived": {
		Columns{Causation: "c", Type: "u", Correlation: "d", ContentType: "text/plain", OrderingKey: "o"},
		Columns{Causation: "c", Type: "u", Correlation: "d", ContentType: "text/plain", OrderingKey: "o"}},
	"a part of a saga": {
		Columns{Type: "u", Correlation: "d", ContentType: "text/plain", OrderingKey: "s\x1fk\x1f1.1"},
		Columns{Type: "u", Correlation: "d", ContentType: "text/plain", OrderingKey: "\x1f1.1"}},
	"another key with the same beginning": {
		Columns{Type: "u", Correlation: "d", ContentType: "text/plain", OrderingKey: "s\x1fkey"},
		Columns{Type: "u", Correlation: "d", ContentType: "text/plain", OrderingKey: "s\x1fkey"}},
	"a key that looks shortened": {
		Columns{Type: "u", Correlation: "d", ContentType: "text/plain", OrderingKey: "\x1f1.1"},
		Columns{Type: "u", Correlation: "d", ContentType: "text/plain", OrderingKey: "\x1e\x1f1.1"}},
	"a key that looks kept": {
		Columns{Type: "u", Correlation: "d", ContentType: "text/plain", OrderingKey: "\x1eo"},
		Columns{Type: "u", Correlation: "d", ContentType: "text/plain", OrderingKey: "\x1e\x1eo"}},
}

// of returns c with what the row says besides.
func of(c Columns) Columns {
	c.ID, c.Topic, c.Scope, c.Key = "0190a5e4-0000-7000-8000-000000000001", "t", "s", "k"
	return c
}

// What a row leaves out is read as it was, in Go and by SQL alike.
func TestWhatARowLeavesOutIsRead(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), pgtest.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	statement := "SELECT " + strings.Join([]string{LoggedType, LoggedCorrelation, LoggedContentType, LoggedOrderingKey}, ", ") + `
		FROM (SELECT $1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text)
		AS m (message_id, topic, scope, key, causation_id, type, correlation_id, content_type, ordering_key)`
	for name, tt := range complete {
		message := of(tt.message)
		row := Compact(message)
		if diff := cmp.Diff(of(tt.row), row); diff != "" {
			t.Errorf("%s: the row (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(message, Expand(row)); diff != "" {
			t.Errorf("%s: read in Go (-want +got):\n%s", name, diff)
		}
		read := row
		err := conn.QueryRow(t.Context(), statement, row.ID, row.Topic, row.Scope, row.Key, row.Causation, row.Type, row.Correlation, row.ContentType, row.OrderingKey).
			Scan(&read.Type, &read.Correlation, &read.ContentType, &read.OrderingKey)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(message, read); diff != "" {
			t.Errorf("%s: read by SQL (-want +got):\n%s", name, diff)
		}
		moved := message
		err = conn.QueryRow(t.Context(), "SELECT "+KeptOrderingKey+" FROM (SELECT $1::text AS ordering_key) m", message.OrderingKey).Scan(&moved.OrderingKey)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(message, Expand(moved)); diff != "" {
			t.Errorf("%s: moved from outbox_held into the log (-want +got):\n%s", name, diff)
		}
	}
}
