// Package mail is the service that confirms trips. In this example a mail is a row. A call of another
// system would be a consumer.Effect, as in the order example.
package mail

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/api"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/command"
	"github.com/sagamill/sagamill/saga"
)

//go:embed migrations
var files embed.FS

// Migrations are the service's own tables.
var Migrations, _ = fs.Sub(files, "migrations") // the folder is embedded: there is no error

// fullBox is a traveller whose mailbox bounces the first two mails.
const (
	fullBox = "Fullbox"
	bounces = 2
)

// A Service confirms trips.
type Service struct {
	db     *pgxpool.Pool
	schema string
}

// NewService returns a Service whose tables are in schema.
func NewService(db *pgxpool.Pool, schema string) *Service { return &Service{db: db, schema: schema} }

// BuildSteps returns the service's step.
func (s *Service) BuildSteps() []consumer.Step {
	return []consumer.Step{saga.Participant(consumer.Step{Name: "mail", Action: saga.On(command.Mail, s.sendConfirmation)})}
}

// sendConfirmation sends the mail, or records that it bounced and rejects the command. A rejection
// commits the transaction. The saga asks again with another command.
func (s *Service) sendConfirmation(ctx context.Context, tx pgx.Tx, in consumer.Message[command.Confirmation]) (any, error) {
	bounced := 0
	if in.Body.Traveller == fullBox {
		err := tx.QueryRow(ctx, "SELECT count(*) FROM "+s.schema+".mail WHERE trip_id = $1", in.CorrelationID).Scan(&bounced)
		if err != nil {
			return nil, fmt.Errorf("mail: look up: %w", err)
		}
		bounced++
	}
	state := "sent"
	if bounced > 0 && bounced <= bounces {
		state = "bounced"
	}
	_, err := tx.Exec(ctx, "INSERT INTO "+s.schema+".mail (trip_id, traveller, state, ticket) VALUES ($1, $2, $3, $4)",
		in.CorrelationID, in.Body.Traveller, state, in.Body.Ticket)
	if err != nil {
		return nil, fmt.Errorf("mail: send: %w", err)
	}
	if state == "bounced" {
		return nil, saga.Reject("the mailbox is full")
	}
	return nil, nil
}

// AddRoutes adds the service's HTTP interface to mux.
func (s *Service) AddRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /ledger/mail", api.ServeLedger(s.readLedger))
}

func (s *Service) readLedger(ctx context.Context) (l command.Ledger, err error) {
	rows, _ := s.db.Query(ctx, "SELECT trip_id::text, traveller, state, ticket, at FROM "+s.schema+".mail ORDER BY id")
	l.Entries, err = pgx.CollectRows(rows, pgx.RowToStructByPos[command.Entry])
	return l, err
}
