package saga_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// hold keeps the tests' steps from ending until the caller lets them.
func (p *place) hold() (release func()) {
	p.t.Helper()
	tx, err := p.db.Begin(p.t.Context())
	if err == nil {
		_, err = tx.Exec(p.t.Context(), "LOCK TABLE "+p.schema+".effect IN SHARE MODE")
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(p.t.Context())) })
	return func() {
		if err := tx.Commit(p.t.Context()); err != nil {
			p.t.Fatal(err)
		}
	}
}

// rejection returns a reply that rejects the step of n, under the name of step.
func rejection(p *place, key, step, n string) *message.Message {
	msg := message.NewMessage("reply "+step+" "+n, []byte(`{"outcome":"rejected","reason":"forged"}`))
	msg.Metadata = message.Metadata{
		outbox.HeaderKey: key + ":" + step + "#" + p.marked(key, n), outbox.HeaderScope: "tenant", outbox.PropertyType: saga.TypeReply,
	}
	return msg
}

// letters are the reasons and errors of the dead letters.
func (p *place) letters() (all []string) {
	p.t.Helper()
	rows, err := p.db.Query(p.t.Context(), "SELECT reason, error FROM "+p.schema+".parked WHERE state = 'dead' ORDER BY id")
	if err != nil {
		p.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var reason, text string
		if err := rows.Scan(&reason, &text); err != nil {
			p.t.Fatal(err)
		}
		all = append(all, reason+": "+text)
	}
	return all
}

// Replies that name another step than their n stands for are dead letters before they claim anything: the
// genuine ones come after them, and the saga completes. A participant's replies
// name the saga's step, and not its own.
func TestAReplyNamesItsStep(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	inner := saga.Must(saga.Define("inner", 1, book("visa")))
	d := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel"), saga.Step[trip]{
		Name: "papers", Do: saga.Nested(inner, func(s *trip) trip { return *s }, nil),
	}))
	o := p.orchestrate(&saga.Options{NamedReplies: true}, d)
	desk := p.booking("flight")
	desk.Name = "desk" // not the saga's name for it
	p.participate(desk, p.booking("hotel"), p.booking("visa"))
	release := p.hold()
	start(p, d, "k", trip{Item: "x"})
	var want []string
	for _, forged := range []struct{ topic, step, n, about string }{
		{"trip", "hotel", "1.1.d", "flight"}, {"trip", "desk", "1.1.d", "flight"}, {"trip", "flight", "2.1.d", "hotel"}, {"trip", "flight", "2.1.u", "hotel"},
		{"trip", "hotel", "3.1.d", "saga-inner"}, {"trip", "papers", "3.1.d", "saga-inner"},
	} {
		if err := o.Consumer().Handle(t.Context(), saga.Topic(forged.topic), rejection(p, "k", forged.step, forged.n)); err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprintf("unverified: saga: the reply names another step than it is about: %q, and it is about %q", forged.step, forged.about))
	}
	if err := o.Consumer().Handle(t.Context(), saga.Topic("trip"), rejection(p, "k", "flight", "9.1.d")); err != nil {
		t.Fatal(err)
	}
	want = append(want, `unverified: saga: the reply names another step than it is about: "flight", and trip, version 1, has no step 9`)
	release()
	p.until("k", saga.StatusCompleted)
	if got := p.effects("k"); got != "[flight hotel visa]" {
		t.Errorf("effects %s, want each step once", got)
	}
	if got := p.letters(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("dead letters\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A reply about an instance that has not begun is refused as well, before it claims the row of the
// genuine one.
func TestAReplyThatComesBeforeItsInstance(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	inner := saga.Must(saga.Define("inner", 1, book("visa"), book("stamp")))
	d := saga.Must(saga.Define("trip", 1, book("flight"), saga.Step[trip]{
		Name: "papers", Do: saga.Nested(inner, func(s *trip) trip { return *s }, nil),
	}))
	o := p.orchestrate(&saga.Options{NamedReplies: true}, d)
	p.participate(p.booking("flight"), p.booking("visa"), p.booking("stamp"))
	release := p.hold()
	start(p, d, "k", trip{Item: "x"})
	if err := o.Consumer().Handle(t.Context(), saga.Topic("inner"), rejection(p, "k", "stamp", "2.1-1.1.d")); err != nil {
		t.Fatal(err)
	}
	release()
	p.until("k", saga.StatusCompleted)
	if got := p.letters(); len(got) != 1 || got[0] != "unverified: saga: no such instance" {
		t.Errorf("dead letters %q, want one that was not believed", got)
	}
}

// Where versions differ in what an n stands for, that of the instance counts.
func TestAReplyNamesTheStepOfItsVersion(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	old := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	d := saga.Must(saga.Define("trip", 2, book("visa"), book("flight"), book("hotel")))
	o := p.orchestrate(&saga.Options{NamedReplies: true}, old, d)
	p.participate(p.booking("visa"), p.booking("flight"), p.booking("hotel"))
	release := p.hold()
	start(p, old, "old", trip{Item: "x"})
	start(p, d, "new", trip{Item: "x"})
	for key, step := range map[string]string{"old": "visa", "new": "flight"} { // as the other version has it
		if err := o.Consumer().Handle(t.Context(), saga.Topic("trip"), rejection(p, key, step, "1.1.d")); err != nil {
			t.Fatal(err)
		}
	}
	release()
	p.until("old", saga.StatusCompleted)
	p.until("new", saga.StatusCompleted)
	letters := p.letters()
	if len(letters) != 2 {
		t.Errorf("dead letters %q, want two", letters)
	}
	for _, letter := range letters {
		if !strings.HasPrefix(letter, string(consumer.ReasonUnverified)) {
			t.Errorf("dead letter %q, want %s", letter, consumer.ReasonUnverified)
		}
	}
}

// A process that does not know the version leaves the reply to one that does, and it is refused
// there: it was not verified, and moves nothing.
func TestAMisnamedReplyOfAnUnknownVersion(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	old := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	d := saga.Must(saga.Define("trip", 2, book("visa"), book("flight")))
	o := p.orchestrate(&saga.Options{NamedReplies: true, Partial: true}, old)
	start(p, d, "k", trip{Item: "x"})
	if err := o.Consumer().Handle(t.Context(), saga.Topic("trip"), rejection(p, "k", "flight", "1.1.d")); err != nil {
		t.Fatal(err)
	}
	if got := p.letters(); len(got) != 0 {
		t.Errorf("dead letters %q before anybody knows", got)
	}
	p.orchestrate(&saga.Options{NamedReplies: true}, old, d)
	p.await("the reply is a dead letter", func() bool { return len(p.letters()) > 0 })
	if got := p.letters(); len(got) != 1 || !strings.HasPrefix(got[0], string(consumer.ReasonTerminal)) || !strings.Contains(got[0], `"flight", and it is about "visa"`) {
		t.Errorf("dead letters %q, want one that says what it names", got)
	}
	if got := p.status("k"); got != saga.StatusRunning {
		t.Errorf("the saga is %s, want %s", got, saga.StatusRunning)
	}
}

// Without the option any name will do, as for participants of other makes.
func TestAReplyMayNameAnyStep(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	d := saga.Must(saga.Define("trip", 1, book("flight")))
	o := p.orchestrate(nil, d)
	p.participate(p.booking("flight"))
	release := p.hold()
	start(p, d, "k", trip{Item: "x"})
	if err := o.Consumer().Handle(t.Context(), saga.Topic("trip"), rejection(p, "k", "desk", "1.1.d")); err != nil {
		t.Fatal(err)
	}
	if reason := p.until("k", saga.StatusCompensated); reason != "step flight was rejected: forged" {
		t.Errorf("the saga is compensated for %q, want the reply's reason", reason)
	}
	release()
}

// A misnamed reply for an instance that cannot be read does not claim the row of the genuine
// one, which is handled once a person has mended the instance.
func TestAMisnamedReplyForAnUnfitInstance(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	d := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	o := p.orchestrate(&saga.Options{NamedReplies: true}, d)
	p.participate(p.booking("flight"), p.booking("hotel"))
	release := p.hold()
	start(p, d, "k", trip{Item: "x"})
	p.exec("CREATE TABLE {schema}.kept AS SELECT * FROM {schema}.saga")
	p.exec("UPDATE {schema}.saga SET progress = '{'")
	if err := o.Consumer().Handle(t.Context(), saga.Topic("trip"), rejection(p, "k", "hotel", "1.1.d")); err != nil {
		t.Fatal(err)
	}
	p.exec("UPDATE {schema}.saga AS s SET progress = kept.progress FROM {schema}.kept")
	release()
	p.until("k", saga.StatusCompleted)
	if got := p.letters(); len(got) != 1 || !strings.HasPrefix(got[0], string(consumer.ReasonUnverified)) {
		t.Errorf("dead letters %q, want one, %s", got, consumer.ReasonUnverified)
	}
}

// A misnamed reply whose scope is none is never looked at: no database takes it.
func TestAMisnamedReplyOfNoScopeIsADeadLetter(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	o := p.orchestrate(&saga.Options{NamedReplies: true}, saga.Must(saga.Define("trip", 1, book("flight"), book("hotel"))))
	for _, scope := range []string{"", "ten\x00ant", "ten\xffant", strings.Repeat("x", outbox.MaxScope+1)} {
		msg := rejection(p, "k", "hotel", "1.1.d")
		msg.Metadata.Set(outbox.HeaderScope, scope)
		if err := o.Consumer().Handle(t.Context(), saga.Topic("trip"), msg); err != nil {
			t.Errorf("scope %.10q: %v", scope, err)
		}
	}
	if got := p.letters(); len(got) != 4 {
		t.Errorf("dead letters %q, want one for each of 4", got)
	}
}

// A reply that cannot be looked at, since the database is away, waits. It neither claims
// the row of the genuine one nor is it refused.
func TestAReplyIsNotBelievedUnseen(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	d := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	p.orchestrate(&saga.Options{NamedReplies: true}, d)
	p.participate(p.booking("flight"), p.booking("hotel"))
	var away atomic.Bool
	config := p.db.Config().Copy()
	config.MaxConns, config.MinConns = 1, 0
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if away.Load() {
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	own, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	o, err := saga.NewOrchestrator(own, nil, []saga.Plan{d}, &saga.Options{Schema: p.schema, Logger: quiet, NamedReplies: true})
	if err != nil {
		t.Fatal(err)
	}
	release := p.hold()
	start(p, d, "k", trip{Item: "x"})
	forged := func() error {
		return o.Consumer().Handle(t.Context(), saga.Topic("trip"), rejection(p, "k", "hotel", "1.1.d"))
	}
	away.Store(true)
	if err := forged(); !errors.Is(err, consumer.ErrVerifyLater) {
		t.Errorf("while the database is away: %v, want an ErrVerifyLater", err)
	}
	if got := p.letters(); len(got) > 0 {
		t.Errorf("dead letters %q of what nobody has looked at", got)
	}
	away.Store(false)
	if err := forged(); err != nil {
		t.Fatal(err)
	}
	release()
	p.until("k", saga.StatusCompleted)
	if got := p.letters(); len(got) != 1 || !strings.HasPrefix(got[0], string(consumer.ReasonUnverified)) {
		t.Errorf("dead letters %q, want the forged reply, %s", got, consumer.ReasonUnverified)
	}
}
