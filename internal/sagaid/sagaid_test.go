package sagaid_test

import (
	"context"
	"errors"
	"testing"

	"github.com/sagamill/sagamill/internal/sagaid"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	request := sagaid.ID{Scope: "acme", Key: "k", Incarnation: "1a"}
	inside := sagaid.NewContext(context.Background(), request)
	for _, v := range []struct {
		name  string
		ctx   context.Context
		named sagaid.ID
		want  sagaid.ID
		err   error
	}{
		{"the request's", inside, sagaid.ID{}, request, nil},
		{"another one", inside, sagaid.ID{Scope: "acme", Key: "l", Incarnation: "2b"}, sagaid.ID{Scope: "acme", Key: "l", Incarnation: "2b"}, nil},
		{"bare", inside, sagaid.ID{Scope: "acme", Key: "k"}, sagaid.ID{}, sagaid.ErrBare},
		{"bare and meant", inside, sagaid.ID{Scope: "acme", Key: "l", Incarnation: sagaid.None}, sagaid.ID{Scope: "acme", Key: "l"}, nil},
		{"the request's without incarnation", inside, sagaid.ID{Incarnation: sagaid.None}, sagaid.ID{Scope: "acme", Key: "k"}, nil},
		{"no request", context.Background(), sagaid.ID{Scope: "acme", Key: "k"}, sagaid.ID{Scope: "acme", Key: "k"}, nil},
		{"no request, nothing named", context.Background(), sagaid.ID{}, sagaid.ID{}, nil},
		{"no request, meant", context.Background(), sagaid.ID{Scope: "acme", Key: "k", Incarnation: sagaid.None}, sagaid.ID{Scope: "acme", Key: "k"}, nil},
	} {
		if got, err := sagaid.Resolve(v.ctx, v.named); got != v.want || !errors.Is(err, v.err) {
			t.Errorf("%s: %+v, %v; want %+v, %v", v.name, got, err, v.want, v.err)
		}
	}
}
