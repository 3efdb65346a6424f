package site

import (
	"context"
	"errors"
	"os"

	"github.com/sagamill/sagamill/internal/devservices"
)

// A PrivatePostgres is a PostgreSQL server without a [Site]. It ends with this process, even if that is killed.
type PrivatePostgres struct {
	spawner *spawner
	server  *server
}

// OpenPostgres starts a server with an empty database. Its data are in a directory below work, which the
// server's account must be able to enter. The server's output goes to log. On a machine without PostgreSQL the
// error is an [ErrAbsent]. After an error no server runs.
func OpenPostgres(ctx context.Context, work, log string) (*PrivatePostgres, error) {
	ports, err := devservices.FreePorts(1)
	if err != nil {
		return nil, err
	}
	p := &PrivatePostgres{spawner: newSpawner()}
	if p.server, err = newServer(ctx, p.spawner, work, log, ports[0]); err == nil {
		err = p.server.startServer(ctx)
	}
	if err == nil {
		err = p.createDatabase(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *PrivatePostgres) createDatabase(ctx context.Context) error {
	pool, err := createDatabase(ctx, p.server)
	if err == nil {
		pool.Close()
	}
	return err
}

// URL returns the URL of the database.
func (p *PrivatePostgres) URL() string { return p.server.databaseURL(databaseName) }

// Close ends the server and removes its data.
func (p *PrivatePostgres) Close() error {
	defer p.spawner.stopSpawner()
	if p.server == nil {
		return nil
	}
	p.server.crashServer()
	return os.RemoveAll(p.server.dir)
}
