// Package sagaid carries, in a context, the identity of the saga that an idempotent request
// begins: from package idemkey to those that write messages or start sagas.
package sagaid

import (
	"context"
	"errors"
)

// An ID tells a saga from all others.
type ID struct {
	Scope       string
	Key         string // the idempotency key of the request
	Incarnation string // of the request's record; "": it has none
}

// None, as the incarnation of an ID, says that there is none, and that this is meant.
const None = "."

// ErrBare reports an ID without an incarnation within an idempotent request.
var ErrBare = errors.New("no Incarnation is named with Scope and Key in an idempotent request, whose key may be used again: " +
	"leave Scope and Key out for the request's own saga, or name the Incarnation of the other saga, or NoIncarnation")

type contextKey struct{}

// NewContext returns ctx for a request that begins the saga of id.
func NewContext(ctx context.Context, id ID) context.Context {
	return context.WithValue(ctx, contextKey{}, id)
}

// Resolve completes what a caller has named within ctx. Without Scope and Key it is the
// request's saga. Its error is an [ErrBare]. The result has no None.
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
