package lazytx

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// rows are a result of the holder, which uses the connection until they are closed. If they are those of the last
// statement of a batch, closing them closes the batch.
type rows struct {
	pgx.Rows
	t      *Tx
	br     pgx.BatchResults // nil: of no batch
	err    error            // of the batch's end
	closed bool
}

// Close closes the rows and the batch. It may be called again.
func (r *rows) Close() {
	r.Rows.Close()
	if r.closed {
		return
	}
	r.closed = true
	if r.br != nil {
		r.err = r.br.Close()
	}
	r.t.endCall()
}

func (r *rows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *rows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.Close()
	}
	return err
}

func (r *rows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// A row is the first one of rows.
type row struct {
	rows pgx.Rows
	err  error
}

var errDriverBytes = errors.New("lazytx: cannot scan into *pgtype.DriverBytes from QueryRow")

// Scan behaves like that of a pgx.Row.
func (r row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	for _, d := range dest {
		if _, ok := d.(*pgtype.DriverBytes); ok {
			return errDriverBytes // its bytes are gone once the rows are closed
		}
	}
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// batchResults hide the transaction that their batch has begun. They use the connection until they are closed.
type batchResults struct {
	pgx.BatchResults
	t      *Tx
	closed bool
}

func (*batchResults) Tx() pgx.Tx { return nil }

// Close may be called again.
func (b *batchResults) Close() error {
	err := b.BatchResults.Close()
	if !b.closed {
		b.closed = true
		b.t.endCall()
	}
	return err
}

// failed are the rows of a statement that was not sent.
type failed struct{ err error }

func failedRows(err error) (pgx.Rows, error) { return failed{err}, err }

func (failed) Close()                                       {}
func (f failed) Err() error                                 { return f.err }
func (failed) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (failed) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (failed) Next() bool                                   { return false }
func (f failed) Scan(...any) error                          { return f.err }
func (f failed) Values() ([]any, error)                     { return nil, f.err }
func (failed) RawValues() [][]byte                          { return nil }
func (failed) Conn() *pgx.Conn                              { return nil }
func (failed) TypeMap() *pgtype.Map                         { return nil }
