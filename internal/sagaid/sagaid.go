// Package sagaid carries the identity of the saga that an idempotent request starts, in a context, from package idemkey
// to packages outbox and saga.
package sagaid

import (
	"context"
	"errors"
)

// An ID identifies a saga.
type ID struct {
	Scope       string
	Key         string // the idempotency key of the request
	Incarnation string // of the request's record; "": it has none
}

// None as the incarnation of an ID says that the caller wants none.
const None = "."

// ErrBare reports an ID without an incarnation within an idempotent request.
var ErrBare = errors.New("no Incarnation is named with Scope and Key in an idempotent request, whose key may be used again: " +
	"leave Scope and Key out for the request's own saga, or name the Incarnation of the other saga, or NoIncarnation")

type contextKey struct{}

// NewContext returns ctx for a request that starts the saga of id.
func NewContext(ctx context.Context, id ID) context.Context {
	return context.WithValue(ctx, contextKey{}, id)
}

// Resolve completes the ID that a caller has named. Without Scope and Key it returns the ID of the request in
// ctx. Its error is an [ErrBare]. In the result, [None] is replaced by "".
func Resolve(ctx context.Context, named ID) (ID, error) {
	if request, ok := ctx.Value(contextKey{}).(ID); ok {
		switch {
		case named.Scope == "" && named.Key == "" && named.Incarnation == "":
			named = request
		case named.Scope == "" && named.Key == "":
			named.Scope, named.Key = request.Scope, request.Key
		case named.Incarnation == "":
			return ID{}, ErrBare
		}
	}
	if named.Incarnation == None {
		named.Incarnation = ""
	}
	return named, nil
}
