package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/operator"
)

// unknownOnPage is how many unknown outcomes of a schema a page lists.
const unknownOnPage = 50

// maxAnswer limits the body of an answer that is typed into a form. It is in the URL of the preview.
const maxAnswer = 2000

// eachKeys calls do with the keys of p as the role of the pages sees them or, if that may not, and the person may change
// something, as the role of the changes does. PREFIX_reader has no right to read keys.
func (p *place) eachKeys(role Role, do func(*operator.Keys) error) error {
	k, err := operator.NewKeys(p.pool, &operator.Options{Schema: p.Schema, ReadTimeout: p.timeout})
	if err != nil {
		return err
	}
	if err = do(k); !isDeniedError(err) || role < RoleOperator || p.operator == p.pool {
		return err
	}
	if k, err = operator.NewKeys(p.operator, &operator.Options{Schema: p.Schema, ReadTimeout: p.timeout}); err != nil {
		return err
	}
	return do(k)
}

// A keyRow is a request whose outcome is unknown, or another one that a digest names.
type keyRow struct {
	operator.KeyRecord
	Where *place
}

// Query returns the query of the page of the record.
func (k *keyRow) Query() string {
	return "?" + url.Values{"in": {k.Where.Name}, "digest": {k.Digest}}.Encode()
}

// Why returns why a decision would be refused, "" if it would not.
func (k *keyRow) Why() string {
	err := k.Refusal()
	if err == nil {
		return ""
	}
	return strings.TrimPrefix(err.Error(), "operator: ")
}

// A keyVerb is a verb with what it would do to the record of the page.
type keyVerb struct {
	Verb, Label, Says string
	Denied            bool // the person's role is too low
}

// keyVerbs are the verbs about a request whose outcome is unknown.
var keyVerbs = []keyVerb{
	{"complete", "Complete", "A retry of the request gets the answer that you give, and nothing runs. Make sure that the request had its effect.", false},
	{"release", "Release", "The next retry runs the request again. Make sure that it had no effect, or that another run is harmless. This cannot be undone.", false},
}

// keyRole is what both need: each overrides what nobody knows.
const keyRole = RoleAdmin

// unknownList is what the page of keys shows of the unknown outcomes.
type unknownList struct {
	Unknown  []keyRow
	More     []keyRow // the last of each schema that has more
	Plain    bool     // keys and scopes are shown
	MayPlain bool
	One      *keyRow // the record that a digest names
	Verbs    []keyVerb
}

// listUnknown adds the unknown outcomes of p, behind the one with the digest after.
func (c *Console) listUnknown(ctx context.Context, v *requestsView, p *place, role Role, after string) error {
	var page []operator.KeyRecord
	err := p.eachKeys(role, func(k *operator.Keys) (err error) {
		var last operator.KeyRecord
		if after != "" {
			last, err = k.Find(ctx, operator.KeyRef{Digest: after})
		}
		if err == nil {
			page, err = k.List(ctx, operator.KeyFilter{Namespace: v.Namespace, Scope: v.Scope}, last, unknownOnPage+1)
		}
		return err
	})
	if errors.Is(err, operator.ErrNoKey) {
		return &pageError{Status: http.StatusNotFound, What: "The list goes on behind a key that is decided.", Advice: "Begin the list again."}
	}
	if shown, err := c.noteKeysError(ctx, v, p, err); !shown {
		return err
	}
	shown := page[:min(len(page), unknownOnPage)]
	for i := range shown {
		v.Unknown = append(v.Unknown, keyRow{shown[i], p})
	}
	if len(page) > unknownOnPage {
		v.More = append(v.More, keyRow{shown[unknownOnPage-1], p})
	}
	return nil
}

// findDigest looks for the record of a digest in p.
func (c *Console) findDigest(ctx context.Context, v *requestsView, p *place, role Role, digest string) error {
	var found operator.KeyRecord
	err := p.eachKeys(role, func(k *operator.Keys) (err error) {
		found, err = k.Find(ctx, operator.KeyRef{Digest: digest})
		return err
	})
	if errors.Is(err, operator.ErrNoKey) {
		v.Looked = append(v.Looked, p)
		return nil
	}
	if shown, err := c.noteKeysError(ctx, v, p, err); !shown {
		return err
	}
	v.One = &keyRow{found, p}
	for _, verb := range keyVerbs {
		verb.Denied = role < keyRole
		v.Verbs = append(v.Verbs, verb)
	}
	return nil
}

// noteKeysError reports whether err is nil, and notes on the page why a place could not be read. The page is shown all the
// same, unless the error that it returns is not nil.
func (c *Console) noteKeysError(ctx context.Context, v *requestsView, p *place, err error) (read bool, failed error) {
	switch {
	case err == nil:
		v.Looked = append(v.Looked, p)
		return true, nil
	case isDeniedError(err):
		v.Denied = append(v.Denied, p)
	case isMissingError(err): // the schema has no idempotency keys
	case errors.Is(err, operator.ErrInvalid):
		return false, err
	default:
		v.Failed = append(v.Failed, placeProblem{p, c.explainError(ctx, err)})
	}
	return false, nil
}

// keyKind is the change that decides about a request whose outcome is unknown. The parameters are the schema, the digest of
// the key, the token of the run that the person has seen, and the verb; for complete the answer too.
func (c *Console) keyKind() *changeKind {
	return &changeKind{name: "key", parse: func(ctx context.Context, params url.Values) (change, error) {
		chosen, _, err := c.choosePlaces(ctx, params.Get("in"))
		if err != nil {
			return nil, err
		}
		k := &keyChange{ref: operator.KeyRef{Digest: params.Get("digest")}, run: params.Get("run"), ttl: operator.DefaultKeyTTL}
		for i := range keyVerbs {
			if keyVerbs[i].Verb == params.Get("verb") {
				k.verb = &keyVerbs[i]
			}
		}
		switch {
		case k.verb == nil:
			return nil, badRequest(fmt.Sprintf("There is no verb %.40q.", params.Get("verb")))
		case len(chosen) != 1 || k.ref.Digest == "" || k.run == "":
			return nil, badRequest("The change needs the schema, the digest of a key and its run: open the page of the key.")
		}
		k.where = chosen[0]
		if text := params.Get("ttl"); text != "" {
			if k.ttl, err = time.ParseDuration(text); err != nil || k.ttl <= 0 {
				return nil, badRequest("The record's life must be hours or minutes, such as 24h.")
			}
		}
		if k.verb.Verb == "complete" {
			k.answer, err = readAnswer(params)
		}
		return k, err
	}}
}

// readAnswer reads the answer that a person has filled in.
func readAnswer(params url.Values) (*operator.KeyAnswer, error) {
	status, err := strconv.Atoi(params.Get("status"))
	if err != nil {
		return nil, badRequest("The status of the answer must be a number, such as 201.")
	}
	a := &operator.KeyAnswer{Status: status, ContentType: params.Get("type"), Body: []byte(params.Get("body"))}
	if len(a.Body) > maxAnswer {
		return nil, badRequest(fmt.Sprintf("The body has more than %d bytes: use sagamill keys complete -body FILE.", maxAnswer))
	}
	if err := a.Check(); err != nil {
		return nil, badRequest("The answer cannot be stored: " + afterLast(err.Error(), "invalid options: ") + ".")
	}
	return a, nil
}

// A keyChange decides about one request whose outcome is unknown.
type keyChange struct {
	verb   *keyVerb
	where  *place
	ref    operator.KeyRef
	run    string // the token of the run that the person has seen
	ttl    time.Duration
	answer *operator.KeyAnswer // nil: the request may run again
}

func (k *keyChange) role() Role { return keyRole }

func (k *keyChange) text() changeText {
	t := changeText{Verb: k.verb.Label, One: "key", Many: "keys", Object: "key " + k.ref.Digest, Consequence: k.verb.Says, Final: true}
	if k.answer != nil {
		t.Conditions = append(t.Conditions, condition{"status", strconv.Itoa(k.answer.Status)}, condition{"body", fmt.Sprintf("%d bytes %s", len(k.answer.Body), k.answer.ContentType)})
	}
	t.Conditions = append(t.Conditions, condition{"the record lives", k.ttl.String()})
	return t
}

func (k *keyChange) places() []*place { return []*place{k.where} }

// find returns the record, and why it takes no decision, "" if it takes one.
func (k *keyChange) find(ctx context.Context, keys *operator.Keys) (found keyRow, refusal string, err error) {
	record, err := keys.Find(ctx, k.ref)
	found = keyRow{record, k.where}
	switch {
	case errors.Is(err, operator.ErrNoKey):
		return found, "its outcome is known, or its record is gone", nil
	case err != nil:
		return found, "", err
	case record.Token != k.run:
		return found, "another run has begun since the page was shown, or somebody has decided", nil
	}
	return found, found.Why(), nil
}

func (k *keyChange) preview(ctx context.Context) (p preview, err error) {
	err = k.where.eachKeys(keyRole, func(keys *operator.Keys) error {
		found, refusal, err := k.find(ctx, keys)
		if err != nil {
			return err
		}
		if refusal != "" {
			p.Refused = map[string]int{refusal: 1}
			return nil
		}
		p.Count = 1
		p.Samples = []sample{{k.where.Label, found.Digest, fmt.Sprintf("attempt %d, %s", found.Attempt, found.State), "requests" + found.Query()}}
		if k.answer != nil && len(k.answer.Body) > 0 {
			p.Diffs = []contentDiff{diffContent("Answer", "", string(k.answer.Body))}
		}
		return nil
	})
	return p, err
}

func (k *keyChange) left(ctx context.Context, _ *applyOptions) (int, error) {
	p, err := k.preview(ctx)
	return p.Count, err
}

// apply decides, unless the run is another one than the person has seen.
func (k *keyChange) apply(ctx context.Context, o *applyOptions, _ func(tally)) (tally, error) {
	keys, err := operator.NewKeys(k.where.operator, &operator.Options{Schema: k.where.Schema, By: string(o.Actor), Why: o.Why, ReadTimeout: k.where.timeout})
	if err != nil {
		return tally{}, err
	}
	found, refusal, err := k.find(ctx, keys)
	switch {
	case err != nil:
		return tally{}, err
	case refusal != "":
		return tally{Changed: 1}, nil
	case k.answer != nil:
		err = keys.Complete(ctx, found.KeyRecord, *k.answer, k.ttl)
	default:
		err = keys.Release(ctx, found.KeyRecord, k.ttl)
	}
	switch {
	case errors.Is(err, operator.ErrOwnerLives):
		return tally{Busy: 1}, nil
	case errors.Is(err, operator.ErrKeyDecided): // by somebody else, or by an earlier attempt of this run
		return tally{Changed: 1}, nil
	case err != nil:
		return tally{}, err
	}
	return tally{Done: 1}, nil
}
