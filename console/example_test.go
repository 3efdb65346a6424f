package console_test

import (
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/console"
)

// Mount the console into a service whose middleware has put the person into a header.
func ExampleNew() {
	_ = func(mux *http.ServeMux, orders, trips *pgxpool.Pool) error {
		pages, err := console.New([]console.Database{{Name: "orders", Pool: orders}, {Name: "trips", Pool: trips}}, &console.Options{
			Authorize: func(r *http.Request) (console.Actor, console.Role, error) {
				name := r.Header.Get("X-Authenticated-User")
				if name == "" {
					return "", console.RoleViewer, console.ErrNotAuthorized
				}
				return console.Actor(name), console.RoleOperator, nil
			},
		})
		if err != nil {
			return err
		}
		mux.Handle("/ops/", http.StripPrefix("/ops", pages))
		return nil
	}
}
