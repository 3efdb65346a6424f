package sagamill

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/migrations"
)

// Prepare makes the service's tables and queues. [Service.Run] does it first. Call it when several services start
// together: RabbitMQ keeps a message only for queues that exist, so prepare all services before the first one runs.
//
// It waits for a database and a broker that cannot be reached, until ctx ends. It is harmless to call it again, after
// an error or a crash too.
func (s *Service) Prepare(ctx context.Context) error {
	if err := s.prepareTables(ctx); err != nil {
		return fmt.Errorf("sagamill: service %s: %w", s.config.Name, err)
	}
	if topics := s.topics(); s.declare != nil && len(topics) > 0 {
		if err := s.declare(ctx, topics); err != nil {
			return fmt.Errorf("sagamill: service %s: declare queues: %w", s.config.Name, err)
		}
	}
	s.prepared.Store(true)
	return nil
}

// topics returns what the service listens to.
func (s *Service) topics() (topics []string) {
	if s.consumer != nil {
		topics = append(topics, s.consumer.Topics()...)
	}
	if s.orchestrator != nil {
		topics = append(topics, s.orchestrator.Topics()...)
	}
	return topics
}

// prepareTables migrates, or checks the versions, once the database can be reached.
func (s *Service) prepareTables(ctx context.Context) error {
	work := s.migrate
	if s.config.NoMigrations {
		work = s.checkVersions
	}
	return pg.RetryUntilReachable(ctx, func(err error) {
		s.config.Logger.WarnContext(ctx, "sagamill: the database cannot be reached; trying again", "service", s.config.Name, "error", err)
	}, func(ctx context.Context) error {
		if err := work(ctx); err != nil {
			return err
		}
		return pg.CheckHidden(ctx, s.db, sqlschema.Bind(s.config.Schema, sqlFindHidden))
	})
}

// sqlFindHidden finds a table of which row-level security hides rows from the service: it would take them for absent.
var sqlFindHidden = pg.SQLFindHidden(sqlschema.Tables...)

func (s *Service) migrationsURL() string {
	return cmp.Or(s.config.MigrationsURL, s.config.DatabaseURL, s.db.Config().ConnString())
}

// versionTable is where the version of the service's own tables is kept.
func (s *Service) versionTable() string {
	return strings.ReplaceAll(s.config.Name, "-", "_") + "_version"
}

func (s *Service) migrate(ctx context.Context) error {
	if err := migrations.Up(ctx, s.migrationsURL(), s.config.Schema); err != nil || s.config.Migrations == nil {
		return err
	}
	return migrations.UpFrom(ctx, s.migrationsURL(), s.config.Schema, s.versionTable(), s.config.Migrations)
}

// checkVersions returns an error if a migration has not been applied.
func (s *Service) checkVersions(ctx context.Context) error {
	applied, known, err := migrations.Version(ctx, s.migrationsURL(), s.config.Schema)
	if err != nil {
		return err
	}
	if applied < known {
		return fmt.Errorf("schema %s is at version %d, and this program needs %d: run sagamill migrate up -schema %s", s.config.Schema, applied, known, s.config.Schema)
	}
	if s.config.Migrations == nil {
		return nil
	}
	applied, known, err = migrations.VersionFrom(ctx, s.migrationsURL(), s.config.Schema, s.versionTable(), s.config.Migrations)
	if err != nil {
		return err
	}
	if applied < known {
		return fmt.Errorf("the service's own tables in schema %s are at version %d, and this program needs %d: apply Config.Migrations", s.config.Schema, applied, known)
	}
	return nil
}
