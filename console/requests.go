package console

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/operator"
)

// requestPages is the look-up of an idempotency key, and the list of requests whose outcome is unknown.
func (c *Console) requestPages() []*page {
	return []*page{{path: "requests", title: "Keys", inMenu: true, template: "requests.html", show: c.showRequests}}
}

// A requestsView is what requests.html gets.
type requestsView struct {
	placeChoice
	unknownList
	Key, Scope, Namespace string
	Digest                string
	Rows                  []requestRow
	Denied                []*place // whose keys the role may not read
	Failed                []placeProblem
	Looked                []*place
}

// Padded returns the names of the conditions with a blank at an end.
func (v *requestsView) Padded() []string {
	return listPadded(map[string]*string{"key": &v.Key, "scope": &v.Scope})
}

func (*requestsView) pageTitle() string { return "Idempotency keys" }

type requestRow struct {
	operator.RequestRecord
	Where *place
}

// Record returns the query of the page on which the request is decided.
func (r *requestRow) Record() string {
	return "?" + url.Values{"in": {r.Where.Name}, "digest": {r.Digest()}}.Encode()
}

// A placeProblem says why a place could not be read.
type placeProblem struct {
	Where   *place
	Problem *pageError
}

func (c *Console) showRequests(ctx context.Context, r *request) (any, error) {
	in := strings.TrimSpace(r.values.Get("in"))
	chosen, all, err := c.choosePlaces(ctx, in)
	if err != nil {
		return nil, err
	}
	// A key is looked up as it is: one may begin or end with blanks.
	v := &requestsView{placeChoice: newPlaceChoice(in, all), Key: r.values.Get("key"), Scope: r.values.Get("scope"), Namespace: r.values.Get("namespace")}
	v.Digest, v.MayPlain = strings.TrimSpace(r.values.Get("digest")), r.role >= RoleOperator
	v.Plain = v.MayPlain && r.values.Get("plain") != ""
	for _, p := range chosen {
		switch {
		case v.Key != "":
			err = c.readRequests(ctx, v, p)
		case v.Digest != "":
			err = c.findDigest(ctx, v, p, r.role, v.Digest)
		default:
			err = c.listUnknown(ctx, v, p, r.role, r.values.Get("after"))
		}
		if err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (c *Console) readRequests(ctx context.Context, v *requestsView, p *place) error {
	reader, err := p.reader()
	if err != nil {
		return err
	}
	records, err := reader.FindRequests(ctx, operator.RequestFilter{Namespace: v.Namespace, Scope: v.Scope, Key: v.Key})
	switch {
	case isDeniedError(err):
		v.Denied = append(v.Denied, p)
		return nil
	case isMissingError(err): // the schema has no idempotency keys
		return nil
	case err != nil:
		v.Failed = append(v.Failed, placeProblem{p, c.explainError(ctx, err)})
		return nil
	}
	v.Looked = append(v.Looked, p)
	for i := range records {
		v.Rows = append(v.Rows, requestRow{records[i], p})
	}
	return nil
}

// isDeniedError reports whether PostgreSQL has refused a statement because the role lacks a grant.
func isDeniedError(err error) bool { return hasCode(err, "42501") }

// isMissingError reports whether a table or a schema is not there.
func isMissingError(err error) bool { return hasCode(err, "42P01", "3F000") }

func hasCode(err error, codes ...string) bool {
	var server *pgconn.PgError
	if !errors.As(err, &server) {
		return false
	}
	for _, code := range codes {
		if server.Code == code {
			return true
		}
	}
	return false
}
