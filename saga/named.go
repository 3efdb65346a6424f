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
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/outbox"
)

// errMisnamed reports a reply under the name of another step.
var errMisnamed = errors.New("saga: the reply names another step than it is about")

// nameTimeout is how long an instance is looked for that a reply is about.
const nameTimeout = 5 * time.Second

// nestedStep is what the replies of a nested saga name as their step.
func nestedStep(name string) string { return "saga-" + name }

// checkName returns an errMisnamed unless a reply about the step id of f names it.
func checkName(f *flow.Flow, id int, name string) error {
	if id > f.Machine.Steps() {
		return fmt.Errorf("%w: %q, and %s, version %d, has no step %d", errMisnamed, name, f.Name(), f.Version(), id)
	}
	node := f.Machine.Step(id)
	want := node.Name
	if node.Kind == machine.Nested {
		want = nestedStep(node.Saga)
	}
	if name != want {
		return fmt.Errorf("%w: %q, and it is about %q", errMisnamed, name, want)
	}
	return nil
}

// verifyNames returns what asks verify, if there is one, and then refuses misnamed replies.
func (o *Orchestrator) verifyNames(verify func(string, *message.Message) error) func(string, *message.Message) error {
	return func(topic string, msg *message.Message) error {
		if verify != nil {
			if err := verify(topic, msg); err != nil {
				return err
			}
		}
		return o.verifyName(topic, msg)
	}
}

// verifyName refuses a misnamed reply before it claims a row of the inbox, which would be that of
// the genuine one. Where that is not the name of n in all versions, the instance is looked at: a
// reply waits with a [consumer.ErrVerifyLater] until it can be. One of a version that is not
// registered here is left to the handler, which waits for a process that knows it.
func (o *Orchestrator) verifyName(topic string, msg *message.Message) error {
	if msg.Metadata.Get(outbox.PropertyType) != TypeReply {
		return nil
	}
	key, err := stepkey.Parse(msg.Metadata.Get(outbox.HeaderKey))
	if err != nil {
		return nil // it is a dead letter for that
	}
	incarnation, own := stepkey.SplitN(key.N)
	_, n, err := flow.Unmark(own)
	if err != nil {
		return nil
	}
	to, _, err := flow.ParseReplyN(n)
	scope := msg.Metadata.Get(outbox.HeaderScope)
	if err != nil || !cleantext.Printable(scope) || o.namedAlike(topic, to.Step, key.Step) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), nameTimeout)
	defer cancel()
	i, err := found(scanRow(o.db.QueryRow(ctx, o.sql.readInstance, scope, key.Key, flow.Within(incarnation, to.Path))))
	if errors.Is(err, ErrNoInstance) || errors.Is(err, flow.ErrUnfit) {
		return err // nobody can answer yet, since a command commits with its instance; or nothing can be handled till a person mends it
	}
	if err != nil {
		return fmt.Errorf("%w: saga: look at the instance: %w", consumer.ErrVerifyLater, err)
	}
	if Topic(i.name) != topic {
		return nil
	}
	f, err := o.flowOf(i)
	if err != nil {
		return nil
	}
	return checkName(f, to.Step, key.Step)
}

// namedAlike reports whether id has that name in all registered versions of the saga whose
// replies come by topic.
func (o *Orchestrator) namedAlike(topic string, id int, name string) bool {
	for key, f := range o.flows {
		if Topic(key.name) == topic && checkName(f, id, name) != nil {
			return false
		}
	}
	return true
}
