package sqlschema

// Tables are the tables of sagamill in a schema, partitions included. A schema need not have all of them. A test of
// package migrations compares them with a schema.
var Tables = []string{
	"schema_version", "idempotency_key",
	"outbox", "outbox_0", "outbox_1", "outbox_2", "outbox_other", "outbox_held", "outbox_relay", "outbox_tenure", "outbox_cursor_0", "outbox_cursor_1",
	"inbox", "inbox_horizon", "parked",
	"saga", "saga_definition", "saga_journal", "operator_journal",
}
