package broker

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/internal/management"
)

// What the queues of sagamill have as arguments, and the defaults. Where a policy asks for less, the policy counts.
const (
	ownDeliveryLimit  = 1000
	deadDeliveryLimit = 1 << 30

	defaultConsumerTimeout     = 30 * time.Minute // of RabbitMQ
	defaultDisconnectedTimeout = time.Minute      // of RabbitMQ since 4.3
	defaultDeliveryLimit       = 20               // of RabbitMQ since 4.0
	shortDisconnect            = 5 * time.Second  // a wait that disturbs nobody
	fullMembers                = 3                // of a quorum queue
)

const declareAction = "run sagamill broker declare"

func missingQueue(name string) finding {
	if strings.HasSuffix(name, management.DeadSuffix) {
		return finding{nameQueue(name), "is missing", "", "a message that its queue gives up on waits there for ever", declareAction}
	}
	return finding{nameQueue(name), "is missing", "", "the service gets no messages of the topic", declareAction}
}

func missingExchange(name string) finding {
	return finding{nameExchange(name), "is missing", "", "messages of the topic are refused and stay in the outbox", declareAction + " for a service that listens to the topic"}
}

func deadMessages(name string, n int) finding {
	queue := strings.TrimSuffix(name, management.DeadSuffix)
	return finding{nameQueue(name), "has " + cli.FormatCount(n, "messages"), "", "no service handles messages that are here",
		"find out why they were dead-lettered, then move them to " + cli.FormatCell(queue)}
}

// judge returns what is wrong.
func (s *state) judge() *report {
	r := &report{queues: 2 * len(s.subscriptions), exchanges: len(s.exchanges), unchecked: s.unchecked}
	for _, name := range s.exchanges {
		if e := s.exchangeOf[name]; e != nil {
			s.judgeExchange(r, e)
		} else {
			r.add(missingExchange(name))
		}
	}
	for _, sub := range s.subscriptions {
		if s.exchangeOf[sub.exchange] != nil && s.queueOf[sub.queue] != nil && !slices.Contains(s.bound[sub.exchange], sub.queue) {
			r.add(finding{nameQueue(sub.queue), "is not bound to exchange " + cli.FormatCell(sub.exchange), "", "the service gets no messages of the topic", declareAction})
		}
		for _, name := range []string{sub.queue, sub.dead} {
			q := s.queueOf[name]
			if q == nil {
				r.add(missingQueue(name))
				continue
			}
			s.judgeKind(r, q)
			s.judgeLifetime(r, q)
			s.judgeLength(r, q)
			s.judgeDeadLettering(r, q, sub)
			s.judgeConsumers(r, q)
			s.judgeMembers(r, q)
			s.judgeContent(r, q)
		}
	}
	return r
}

// judgeContent finds messages in a dead-letter queue.
func (s *state) judgeContent(r *report, q *management.Queue) {
	switch {
	case !q.IsDead():
	case q.Messages == nil:
		r.unchecked = append(r.unchecked, "messages in "+cli.FormatCell(q.Name)+", because the broker does not say how many there are")
	case *q.Messages > 0:
		r.add(deadMessages(q.Name, int(*q.Messages)))
	}
}

func (s *state) judgeExchange(r *report, e *management.Exchange) {
	const (
		effect = "messages that reach no queue are confirmed and diverted, so the relay takes them for delivered"
		action = "remove it"
	)
	object := nameExchange(e.Name)
	if e.Type != "fanout" {
		r.add(finding{object, "has the type " + cli.FormatCell(e.Type), "", "services cannot declare it, and it may deliver to some of its queues only", "delete it and " + declareAction})
	}
	if len(s.bound[e.Name]) == 0 {
		r.add(finding{object, "has no queue", "", "messages of the topic are refused and stay in the outbox", declareAction + " for a service that listens to the topic"})
	}
	const key = "alternate-exchange"
	if to, ok := e.Arguments[key].(string); ok {
		r.add(finding{object, key + " " + cli.FormatCell(to), byArgument, effect, "delete the exchange and " + declareAction})
		return
	}
	if e.Policy == "" {
		return
	}
	by := "policy " + cli.FormatCell(e.Policy)
	if !s.readPolicies {
		r.add(finding{object, "is changed", by, "the user may not read whether it has an " + key, "look at it with rabbitmqctl list_policies"})
	} else if to, ok := s.policies[e.Policy][key].(string); ok {
		r.add(finding{object, key + " " + cli.FormatCell(to), by, effect, s.changePolicy(action)})
	}
}

// changePolicy returns the action for a setting of a policy.
func (s *state) changePolicy(what string) string {
	return what + " from the policy, or change its pattern so that it does not match"
}

// Who has set a setting, other than policies.
const (
	byArgument        = "its argument"
	defaultOfRabbitMQ = "RabbitMQ's default"
)

// A setting is a value that counts for a queue, and who has set it.
type setting struct {
	value any
	by    string
}

// policySetting returns what the policies of q set for key.
func (s *state) policySetting(q *management.Queue, key string) (setting, bool) {
	value, ok := q.Effective[key]
	if !ok {
		return setting{}, false
	}
	operator, policy := "operator policy "+cli.FormatCell(q.OperatorPolicy), "policy "+cli.FormatCell(q.Policy)
	ofOperator, operatorSets := s.operators[q.OperatorPolicy][key]
	_, policySets := s.policies[q.Policy][key]
	switch {
	case q.OperatorPolicy == "" || policySets && !(operatorSets && fmt.Sprint(ofOperator) == fmt.Sprint(value)):
		return setting{value, policy}, true
	case q.Policy == "" || operatorSets:
		return setting{value, operator}, true
	}
	return setting{value, policy + " or " + operator}, true
}

// argumentSetting returns what the declaration of q sets for key.
func argumentSetting(q *management.Queue, key string) (setting, bool) {
	value, ok := q.Arguments["x-"+key]
	return setting{value, byArgument}, ok
}

// argumentOrPolicy returns the setting of a key whose argument counts more than a policy.
func (s *state) argumentOrPolicy(q *management.Queue, key string) (setting, bool) {
	if set, ok := argumentSetting(q, key); ok {
		return set, true
	}
	return s.policySetting(q, key)
}

// leastSetting returns the smaller number that a policy or an argument sets. RabbitMQ obeys this one.
func (s *state) leastSetting(q *management.Queue, key string) (least float64, by string, found bool) {
	for _, read := range []func(*management.Queue, string) (setting, bool){s.policySetting, argumentSetting} {
		from, ok := read(q, key)
		if n, isNumber := from.value.(float64); ok && isNumber && n >= 0 && (!found || n < least) {
			least, by, found = n, from.by, true
		}
	}
	return least, by, found
}

// actionFor returns what to do about key, which by has set on q.
func (s *state) actionFor(key, by string) string {
	if by == byArgument || by == defaultOfRabbitMQ {
		return "delete the queue when it is empty and " + declareAction
	}
	return s.changePolicy("remove " + key)
}

// formatMillis returns a number of milliseconds as a duration.
func formatMillis(n float64) string { return cli.FormatAge(time.Duration(n) * time.Millisecond) }

func (s *state) judgeKind(r *report, q *management.Queue) {
	if q.Type == "" || q.Type == "quorum" {
		return
	}
	effect := "only one node has its messages, and nothing counts how often a message is delivered"
	if q.Type == "stream" {
		effect = "it gives no message back that a service did not ack"
	}
	r.add(finding{nameQueue(q.Name), "has the type " + cli.FormatCell(q.Type), "", effect, "delete the queue when it is empty and " + declareAction})
}

// judgeLifetime finds what deletes messages, or the queue, after a time.
func (s *state) judgeLifetime(r *report, q *management.Queue) {
	if n, by, ok := s.leastSetting(q, "message-ttl"); ok {
		effect := "messages that wait longer than " + formatMillis(n) + " are moved to " + cli.FormatCell(q.Name+management.DeadSuffix) + ", and no service handles them"
		if q.IsDead() {
			effect = "messages that wait longer than " + formatMillis(n) + " are lost"
		}
		r.add(finding{nameQueue(q.Name), fmt.Sprintf("message-ttl %.0f", n), by, effect, s.actionFor("message-ttl", by)})
	}
	if n, by, ok := s.leastSetting(q, "expires"); ok {
		effect := "RabbitMQ deletes the queue with its messages when no consumer has used it for " + formatMillis(n)
		r.add(finding{nameQueue(q.Name), fmt.Sprintf("expires %.0f", n), by, effect, s.actionFor("expires", by)})
	}
}

// judgeLength finds what drops messages of a full queue.
func (s *state) judgeLength(r *report, q *management.Queue) {
	overflow, ok := s.policySetting(q, "overflow")
	if !ok {
		overflow, ok = argumentSetting(q, "overflow")
	}
	if !ok {
		overflow = setting{"drop-head", defaultOfRabbitMQ}
	}
	drops := overflow.value != "reject-publish"
	limited := false
	for _, key := range []string{"max-length", "max-length-bytes"} {
		n, by, ok := s.leastSetting(q, key)
		limited = limited || ok
		switch {
		case ok && drops:
			effect := "a full queue drops its oldest messages"
			r.add(finding{nameQueue(q.Name), fmt.Sprintf("%s %.0f with overflow %v", key, n, overflow.value), by, effect, s.actionFor(key, by)})
		case ok && q.IsDead():
			effect := "a full queue takes no more messages that " + cli.FormatCell(strings.TrimSuffix(q.Name, management.DeadSuffix)) + " gives up on"
			r.add(finding{nameQueue(q.Name), fmt.Sprintf("%s %.0f", key, n), by, effect, s.actionFor(key, by)})
		}
	}
	if q.IsDead() || q.Type != "quorum" {
		return // it dead-letters nothing, or has no choice
	}
	strategy, ok := s.argumentOrPolicy(q, "dead-letter-strategy")
	if !ok {
		strategy = setting{"at-most-once", defaultOfRabbitMQ}
	}
	effect := "RabbitMQ can lose a message while it moves it to " + cli.FormatCell(q.Name+management.DeadSuffix)
	if drops && !limited {
		r.add(finding{nameQueue(q.Name), fmt.Sprintf("overflow %v", overflow.value), overflow.by, effect, s.actionFor("overflow", overflow.by)})
	}
	if strategy.value != "at-least-once" {
		r.add(finding{nameQueue(q.Name), fmt.Sprintf("dead-letter-strategy %v", strategy.value), strategy.by, effect, s.actionFor("dead-letter-strategy", strategy.by)})
	}
}

// judgeDeadLettering finds when the queue gives up on a message, and where the message goes then.
func (s *state) judgeDeadLettering(r *report, q *management.Queue, sub subscription) {
	limit, effect := float64(ownDeliveryLimit), "the queue gives up on a message after so many deliveries, not after %.0f"
	if q.IsDead() {
		limit, effect = deadDeliveryLimit, "the queue drops a message that is given back so often; its own limit is %.0f"
	}
	n, by, ok := s.leastSetting(q, "delivery-limit")
	if _, set := s.argumentOrPolicy(q, "delivery-limit"); !set && q.Type == "quorum" && s.atLeast(4, 0) {
		n, by, ok = defaultDeliveryLimit, defaultOfRabbitMQ, true
	}
	if ok && n < limit {
		r.add(finding{nameQueue(q.Name), fmt.Sprintf("delivery-limit %.0f", n), by, fmt.Sprintf(effect, limit), s.actionFor("delivery-limit", by)})
	}
	if q.IsDead() {
		return
	}
	for _, own := range []struct{ key, value string }{{"dead-letter-exchange", ""}, {"dead-letter-routing-key", sub.dead}} {
		key := own.key
		set, ok := s.argumentOrPolicy(q, key)
		switch {
		case !ok:
			r.add(finding{nameQueue(q.Name), "has no " + key, "", "a message that the queue gives up on may be lost", s.actionFor(key, byArgument)})
		case set.value != own.value:
			effect := "a message that the queue gives up on does not go to " + cli.FormatCell(sub.dead)
			r.add(finding{nameQueue(q.Name), key + " " + cli.FormatCell(fmt.Sprint(set.value)), set.by, effect, s.actionFor(key, set.by)})
		}
	}
}

// judgeConsumers finds how long messages stay with a consumer.
func (s *state) judgeConsumers(r *report, q *management.Queue) {
	if q.IsDead() {
		return // it has none
	}
	set, _ := s.argumentOrPolicy(q, "consumer-timeout")
	if n, ok := set.value.(float64); ok && n > 0 && n < float64(defaultConsumerTimeout.Milliseconds()) {
		effect := "a message is delivered again if its handler takes longer than " + formatMillis(n)
		r.add(finding{nameQueue(q.Name), fmt.Sprintf("consumer-timeout %.0f", n), set.by, effect, s.actionFor("consumer-timeout", set.by)})
	}
	const (
		key    = "consumer-disconnected-timeout"
		action = "set " + key + " to 1000 by a policy, or delete the queue when it is empty and " + declareAction
	)
	set, ok := s.argumentOrPolicy(q, key)
	if !ok && q.Type == "quorum" && s.atLeast(4, 3) {
		set, ok = setting{float64(defaultDisconnectedTimeout.Milliseconds()), defaultOfRabbitMQ}, true
	}
	if n, isNumber := set.value.(float64); ok && isNumber && n > float64(shortDisconnect.Milliseconds()) {
		effect := "after a node has died, the messages of its consumers wait for " + formatMillis(n)
		r.add(finding{nameQueue(q.Name), fmt.Sprintf("%s %.0f", key, n), set.by, effect, action})
	}
}

// judgeMembers finds quorum queues that survive fewer failures than the cluster.
func (s *state) judgeMembers(r *report, q *management.Queue) {
	if len(q.Members) == 0 {
		return
	}
	if len(s.nodes) >= fullMembers && len(q.Members) < fullMembers {
		r.add(finding{nameQueue(q.Name), fmt.Sprintf("has %s on %d nodes", cli.FormatCount(len(q.Members), "members"), len(s.nodes)), "",
			"the queue stalls, and can lose its messages, if one of them fails", "add members with rabbitmq-queues grow NODE all"})
	}
	offline := slices.DeleteFunc(slices.Clone(q.Members), func(node string) bool { return slices.Contains(q.Online, node) })
	if len(offline) > 0 {
		r.add(finding{nameQueue(q.Name), "has members that are offline: " + cli.FormatCell(strings.Join(offline, ", ")), "",
			"the queue stalls without a majority of its members", "start these nodes"})
	}
}
