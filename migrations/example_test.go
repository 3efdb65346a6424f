package migrations_test

import (
	"context"
	"embed"
	"io/fs"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

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

// A service that applies its migrations in a deployment only checks them at its start.
func ExampleVersionFrom() {
	applied, known, err := migrations.VersionFrom(context.Background(), os.Getenv("DATABASE_URL"), "order_service", "order_version", folder)
	if err != nil {
		log.Fatal(err)
	}
	if applied < known {
		log.Fatalf("the tables are at version %d, this program needs %d", applied, known)
	}
}

// A service that keeps idempotency records, and nothing else of this module. It sends
// messages later, and so adds the outbox.
func ExampleUp() {
	ctx, url := context.Background(), os.Getenv("DATABASE_URL")
	if err := migrations.Up(ctx, url, "payment_service", migrations.Idempotency); err != nil {
		log.Fatal(err)
	}
	if err := migrations.Up(ctx, url, "payment_service", migrations.Idempotency, migrations.Outbox); err != nil {
		log.Fatal(err)
	}
}

// Lists the parts that a schema has been migrated for.
func ExampleParts() {
	parts, err := migrations.Parts(context.Background(), os.Getenv("DATABASE_URL"), "payment_service")
	if err != nil {
		log.Fatal(err)
	}
	log.Print(parts)
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

// Before a release is taken back: where the tables are, and then back to what the older
// binary knows, with no newer process left.
func ExampleDown() {
	ctx, url := context.Background(), os.Getenv("DATABASE_URL")
	const before = 5 // the newest migration of the older binary
	applied, known, err := migrations.Version(ctx, url, "order_service")
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("the schema is at %d, this binary knows %d", applied, known)
	if applied > before && applied <= known { // else a newer binary has to do it
		if err := migrations.Down(ctx, url, "order_service", before); err != nil {
			log.Fatal(err)
		}
	}
}

// Which services keep their tables in a database.
func ExampleSchemas() {
	ctx := context.Background()
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	schemas, err := migrations.Schemas(ctx, db)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range schemas {
		log.Print(s.Name, " readable: ", s.Readable(), ", with sagas: ", s.Sagas)
	}
}

// Which schemas have had which migrations.
func ExampleListApplied() {
	ctx := context.Background()
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	all, err := migrations.ListApplied(ctx, db)
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range all {
		log.Print(a.Schema, ": ", a.Version, " of ", migrations.Newest(), " migrations of ", a.Parts)
	}
}

// A deployment can ask a binary for its migrations without a database.
func ExampleNewest() {
	log.Print("migrations up to ", migrations.Newest())
}
