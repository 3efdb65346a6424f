package cookbook

import (
	"bytes"
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/saga"
)

// participants do the steps of both versions, and store which commands they have had.
func participants() []consumer.Step {
	do := func(ctx context.Context, tx pgx.Tx, in consumer.Message[Order]) (string, error) {
		_, err := tx.Exec(ctx, "INSERT INTO shop.shipment (saga) VALUES ($1)", in.Key+" "+in.Topic)
		return "low", err
	}
	undo := func(context.Context, pgx.Tx, consumer.Message[Order]) error { return nil }
	return []consumer.Step{
		saga.Participant(consumer.Step{Name: "check", Action: saga.On("fraud.check", do)}),
		saga.Participant(consumer.Step{Name: "charge", Action: saga.On("payment.charge", do), Compensation: saga.OnUndo("payment.refund", undo)}),
		saga.Participant(consumer.Step{Name: "ship", Action: saga.On("parcel.send", do)}),
	}
}

// begin starts an instance of a version.
func begin(t *testing.T, s *sagamill.Service, d *saga.Definition[Purchase], key string) {
	t.Helper()
	starter, err := sagamill.Starter(s, d)
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), s.Database(), func(tx pgx.Tx) error {
		_, err := starter.Start(t.Context(), tx, saga.ID{Scope: "acme", Key: key}, Purchase{Order: Order{"book", 4200}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Relay().Wake()
}

// Instances of two versions run side by side, each by its plan.
func TestVersionsRunSideBySide(t *testing.T) {
	t.Parallel()
	s := start(t, sagamill.Config{Sagas: []saga.Plan{PurchaseV1, PurchaseV2}, Steps: participants()})
	begin(t, s, PurchaseV1, "old")
	begin(t, s, PurchaseV2, "new")
	awaitText(t, s, "new 2 completed, old 1 completed", "SELECT string_agg(concat_ws(' ', key, version, status), ', ' ORDER BY key) FROM shop.saga")
	want := "new fraud.check, new parcel.send, new payment.charge, old parcel.send, old payment.charge"
	if got := readText(t, s, sqlEnds); got != want {
		t.Errorf("commands: %s, want %s", got, want)
	}
}

// A program without version 1 is found before it is deployed.
func TestManifestFindsALiveVersion(t *testing.T) {
	t.Parallel()
	s := start(t, sagamill.Config{Sagas: []saga.Plan{PurchaseV1, PurchaseV2}}) // without participants it does not end
	begin(t, s, PurchaseV1, "old")
	var printed bytes.Buffer
	if err := PrintManifest(&printed); err != nil {
		t.Fatal(err)
	}
	both, err := saga.ReadManifest(&printed)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		manifest saga.Manifest
		problem  bool
	}{
		{both, false},
		{saga.NewManifest(PurchaseV2), true},
	} {
		live, err := tt.manifest.Check(t.Context(), s.Database(), s.Schema())
		if err != nil || len(live) != 1 || live[0].Version != 1 || (live[0].Problem != "") != tt.problem {
			t.Errorf("Check = %+v, %v; want version 1 with a problem: %t", live, err, tt.problem)
		}
	}
}
