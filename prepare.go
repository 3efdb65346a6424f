package sagamill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/migrations"
)

const (
	preparePause = 250 * time.Millisecond // between two attempts to reach the database
	prepareLog   = 10 * time.Second       // between two log messages about that
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
	var logged time.Time
	for {
		err := work(ctx)
		if err == nil || !isUnreachable(err) {
			return err
		}
		if time.Since(logged) > prepareLog {
			s.config.Logger.WarnContext(ctx, "sagamill: the database cannot be reached; trying again", "service", s.config.Name, "error", err)
			logged = time.Now()
		}
		if backoff.Sleep(ctx, preparePause) != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// isUnreachable reports that no server answers, or that it will take connections later. Any other answer means a
// wrong setting, such as a database that does not exist.
func isUnreachable(err error) bool {
	var refused *pgconn.ConnectError
	var answered *pgconn.PgError
	if !errors.As(err, &refused) {
		return false
	}
	return !errors.As(err, &answered) || strings.HasPrefix(answered.Code, "57P") || answered.Code == "53300"
}

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
