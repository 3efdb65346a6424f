package saga

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/outbox"
)

// errMisnamed reports a reply under the name of another step.
var errMisnamed = errors.New("saga: the reply names another step than it is about")

// verifyTimeout bounds the read of the instance that a reply is about.
const verifyTimeout = 5 * time.Second

// checkReplyName returns an errMisnamed unless name is what a reply about a step of f must name.
func checkReplyName(f *flow.Flow, step int, name string) error {
	if step > f.Machine.Steps() {
		return fmt.Errorf("%w: %q, and %s, version %d, has no step %d", errMisnamed, name, f.Name(), f.Version(), step)
	}
	node := f.Machine.Step(step)
	want := node.Name
	if node.Kind == machine.Nested {
		want = flow.NestedStep(node.Saga)
	}
	if name != want {
		return fmt.Errorf("%w: %q, and it is about %q", errMisnamed, name, want)
	}
	return nil
}

// verifyAfter returns a Verify option that calls the user's verify, if there is one, and then verifyReply.
func (r *receiver) verifyAfter(verify func(string, *message.Message) error) func(string, *message.Message) error {
	return func(topic string, msg *message.Message) error {
		if verify != nil {
			if err := verify(topic, msg); err != nil {
				return err
			}
		}
		return r.verifyReply(topic, msg)
	}
}

// verifyReply refuses a misnamed reply before it claims a row of the inbox, which would be the row of the genuine
// reply. It reads the instance unless the step has that name in every registered version. If the read fails, the
// reply waits with a [consumer.ErrVerifyLater]. A reply of a version that is not registered here passes: its handler
// waits for a process that knows the version.
func (r *receiver) verifyReply(topic string, msg *message.Message) error {
	if msg.Metadata.Get(outbox.PropertyType) != TypeReply {
		return nil
	}
	key, err := stepkey.Parse(msg.Metadata.Get(outbox.HeaderKey))
	if err != nil {
		return nil // the consumer makes it a dead letter
	}
	incarnation, own := stepkey.SplitN(key.N)
	_, n, err := flow.Unmark(own)
	if err != nil {
		return nil
	}
	to, _, err := flow.ParseReplyN(n)
	scope := msg.Metadata.Get(outbox.HeaderScope)
	if err != nil || !cleantext.Printable(scope) || r.plans.allVersionsName(topic, to.Step, key.Step) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), verifyTimeout)
	defer cancel()
	row, err := r.sql.rows.ReadRow(ctx, r.db, sagarow.Address{Scope: scope, Key: key.Key, Path: flow.Within(incarnation, to.Path)})
	if errors.Is(err, ErrNoInstance) || errors.Is(err, flow.ErrUnfit) {
		return err // a command commits with its instance, so no genuine reply is early; and an unfit row handles none
	}
	if err != nil {
		return fmt.Errorf("%w: saga: look at the instance: %w", consumer.ErrVerifyLater, err)
	}
	if Topic(row.Name) != topic {
		return nil
	}
	f, err := r.plans.flowOfInstance(row)
	if err != nil {
		return nil
	}
	return checkReplyName(f, to.Step, key.Step)
}
