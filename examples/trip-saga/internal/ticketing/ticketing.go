// Package ticketing is the service that issues tickets. Its step is the saga's pivot, because a
// ticket cannot be taken back.
package ticketing

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

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

// noFly is a traveller whose ticket is rejected.
const noFly = "Nofly"

// A Service issues tickets.
type Service struct {
	db     *pgxpool.Pool
	schema string
}

// NewService returns a Service whose tables are in schema.
func NewService(db *pgxpool.Pool, schema string) *Service { return &Service{db: db, schema: schema} }

// BuildSteps returns the service's step. It has no compensation.
func (s *Service) BuildSteps() []consumer.Step {
	return []consumer.Step{saga.Participant(consumer.Step{Name: "ticket", Action: saga.On(command.Ticket, s.issueTicket)})}
}

func (s *Service) issueTicket(ctx context.Context, tx pgx.Tx, in consumer.Message[command.Ticketing]) (number string, err error) {
	if in.Body.Traveller == noFly {
		return "", saga.Reject("no ticket is issued for " + noFly)
	}
	number = "T-" + strings.ToUpper(in.CorrelationID[len(in.CorrelationID)-10:])
	_, err = tx.Exec(ctx, "INSERT INTO "+s.schema+".ticket (trip_id, traveller, number) VALUES ($1, $2, $3)", in.CorrelationID, in.Body.Traveller, number)
	if err != nil {
		return "", fmt.Errorf("ticketing: issue: %w", err)
	}
	return number, nil
}

// AddRoutes adds the service's HTTP interface to mux.
func (s *Service) AddRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /ledger/ticketing", api.ServeLedger(s.readLedger))
}

func (s *Service) readLedger(ctx context.Context) (l command.Ledger, err error) {
	rows, _ := s.db.Query(ctx, "SELECT trip_id::text, traveller, 'issued', number, at FROM "+s.schema+".ticket ORDER BY id")
	l.Entries, err = pgx.CollectRows(rows, pgx.RowToStructByPos[command.Entry])
	return l, err
}
