package migrations_test

import (
	"context"
	"embed"
	"io/fs"
	"log"
	"os"

	"github.com/sagamill/sagamill/migrations"
)

// The service's own migrations, 001_orders.sql and so on, would be in the folder.
//
//go:embed testdata
var folder embed.FS

// A service applies sagamill's migrations to its schema, and then its own.
func Example() {
	ctx, url := context.Background(), os.Getenv("DATABASE_URL")
	if err := migrations.Up(ctx, url, "order_service"); err != nil {
		log.Fatal(err)
	}
	own, err := fs.Sub(folder, "tables")
	if err != nil {
		log.Fatal(err)
	}
	if err := migrations.UpFrom(ctx, url, "order_service", "order_version", own); err != nil {
		log.Fatal(err)
	}
}

// SQL for those who apply it themselves, with roles that may do no more than they need.
func ExampleRoles() {
	if err := migrations.Print(os.Stdout, "order_service"); err != nil {
		log.Fatal(err)
	}
	if err := migrations.Roles(os.Stdout, "order_service", "order"); err != nil {
		log.Fatal(err)
	}
}
