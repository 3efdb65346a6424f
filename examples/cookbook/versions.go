package cookbook

import (
	"encoding/json"
	"io"

	"github.com/sagamill/sagamill/saga"
)

// A Purchase is the state of all versions of the saga. A later version may add members.
type Purchase struct {
	Order

	Risk string `json:"risk,omitempty"` // since version 2
}

func (p *Purchase) order() Order         { return p.Order }
func (p *Purchase) keepRisk(risk string) { p.Risk = risk }

var (
	charge = saga.Step[Purchase]{
		Name: "charge",
		Do:   saga.Tell("payment.charge", (*Purchase).order),
		Undo: saga.Tell("payment.refund", (*Purchase).order),
	}
	ship = saga.Step[Purchase]{Name: "ship", Do: saga.Tell("parcel.send", (*Purchase).order)}
)

// PurchaseV1 stays in the program until its last instance has ended.
var PurchaseV1 = saga.Must(saga.Define("purchase", 1, charge, ship))

// PurchaseV2 asks for the risk first.
var PurchaseV2 = saga.Must(saga.Define("purchase", 2,
	saga.Step[Purchase]{Name: "check", Do: saga.Remote("fraud.check", (*Purchase).order, (*Purchase).keepRisk)},
	charge,
	ship,
))

// PrintManifest prints what the program knows, for the command sagamill saga check.
func PrintManifest(w io.Writer) error {
	return json.NewEncoder(w).Encode(saga.NewManifest(PurchaseV1, PurchaseV2))
}
