package operator_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/operator"
)

// Print who is connected to a database.
func ExampleListProcesses() {
	_ = func(ctx context.Context, db *pgxpool.Pool) error {
		all, err := operator.ListProcesses(ctx, db)
		for _, p := range all {
			fmt.Println(p.Name, p.Role, p.Connections)
		}
		return err
	}
}

// Count the live instances in each schema of a database.
func ExampleListSchemas() {
	_ = func(ctx context.Context, db *pgxpool.Pool) error {
		schemas, err := operator.ListSchemas(ctx, db)
		if err != nil {
			return err
		}
		for _, schema := range schemas {
			instances, err := operator.NewInstances(db, &operator.Options{Schema: schema})
			if err != nil {
				return err
			}
			n, err := instances.Count(ctx, operator.InstanceFilter{Live: true})
			if err != nil {
				return err
			}
			fmt.Println(schema, n)
		}
		return nil
	}
}

// Pause what is running, and nothing that moves after the preview.
func ExampleReadClock() {
	_ = func(ctx context.Context, db *pgxpool.Pool, instances *operator.Instances) error {
		moment, err := operator.ReadClock(ctx, db)
		if err != nil {
			return err
		}
		filter := operator.InstanceFilter{Live: true, UnchangedSince: moment}
		pause := operator.Decision{Verb: operator.VerbPause, By: "ann", Why: "maintenance"}
		if _, err := instances.PreviewAll(ctx, filter, pause, nil); err != nil {
			return err
		}
		_, err = instances.DecideAll(ctx, filter, pause, nil)
		return err
	}
}
