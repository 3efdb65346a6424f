package rabbitmq_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// shop is a topology of the test's own, declared: two services listen to one topic, and
// a third topic is only published to.
func shop(t *testing.T) (topology rabbitmq.Topology, queues []string) {
	t.Helper()
	topology = rabbitmq.Topology{Prefix: rabbittest.Name(), Services: []rabbitmq.Service{
		{Name: "pay", Publishes: []string{"paid"}, Listens: []string{"ordered"}},
		{Name: "ship", Publishes: []string{"shipped"}, Listens: []string{"ordered", "paid"}},
	}}
	for _, s := range topology.Services {
		cfg, err := rabbitmq.NewConfig(rabbittest.URL(), s.Name, &rabbitmq.ConfigOptions{Prefix: topology.Prefix})
		if err != nil {
			t.Fatal(err)
		}
		if err := rabbitmq.DeclareTopology(t.Context(), cfg, s.Listens...); err != nil {
			t.Fatal(err)
		}
		for _, topic := range s.Listens {
			queues = append(queues, cfg.Queue.GenerateName(topic), cfg.Queue.GenerateName(topic)+".dead")
		}
	}
	rabbittest.Delete(t, queues, []string{topology.Prefix + "ordered", topology.Prefix + "paid", topology.Prefix + "shipped"})
	return topology, queues
}

// remove deletes topology and returns the names of what was deleted.
func remove(t *testing.T, topology rabbitmq.Topology, opts *rabbitmq.DeleteOptions, want error) (deleted []string, parts []rabbitmq.Part) {
	t.Helper()
	parts, err := topology.Delete(t.Context(), rabbittest.URL(), opts)
	if !errors.Is(err, want) {
		t.Fatalf("Delete = %v, want %v", err, want)
	}
	for _, p := range parts {
		if p.Deleted {
			deleted = append(deleted, p.Name)
		}
	}
	return deleted, parts
}

func TestADeletedTopologyLeavesNothing(t *testing.T) {
	t.Parallel()
	topology, queues := shop(t)
	there, err := topology.FindParts(t.Context(), rabbittest.URL())
	missing := slices.DeleteFunc(there, func(p rabbitmq.Part) bool { return p.Found })
	if want := []rabbitmq.Part{{Name: topology.Prefix + "shipped", Exchange: true}}; err != nil || !slices.Equal(missing, want) {
		t.Errorf("FindParts misses %+v, %v; want %+v", missing, err, want)
	}
	deleted, parts := remove(t, topology, &rabbitmq.DeleteOptions{DryRun: true}, nil)
	if found := slices.DeleteFunc(parts, func(p rabbitmq.Part) bool { return !p.Found }); len(deleted) > 0 || len(found) != len(queues)+2 {
		t.Errorf("a dry run deleted %q and found %+v", deleted, found)
	}
	want := append(slices.Clone(queues), topology.Prefix+"ordered", topology.Prefix+"paid")
	if deleted, _ = remove(t, topology, nil, nil); !slices.Equal(deleted, want) {
		t.Errorf("it deleted %q, want %q", deleted, want)
	}
	deleted, parts = remove(t, topology, nil, nil)
	if len(deleted) > 0 || slices.ContainsFunc(parts, func(p rabbitmq.Part) bool { return p.Found }) {
		t.Errorf("once more: %q, %+v; want nothing", deleted, parts)
	}
}

func TestAQueueThatIsUsedIsNotDeletedButByForce(t *testing.T) {
	t.Parallel()
	topology, queues := shop(t)
	cfg, err := rabbitmq.NewConfig(rabbittest.URL(), "ship", &rabbitmq.ConfigOptions{Prefix: topology.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	mustPublish(t, newPublisher(t, cfg, nil), "ordered", 3)
	subscribe(t, cfg, "paid", fast())
	for _, opts := range []*rabbitmq.DeleteOptions{nil, {DryRun: true}} {
		deleted, _ := remove(t, topology, opts, rabbitmq.ErrInUse)
		_, err := topology.Delete(t.Context(), rabbittest.URL(), opts)
		for _, says := range []string{"ordered.pay: 3 messages, 0 consumers", "paid.ship: 0 messages, 1 consumers"} {
			if len(deleted) > 0 || err == nil || !strings.Contains(err.Error(), topology.Prefix+says) {
				t.Errorf("Delete deleted %q: %v; want nothing, and %q", deleted, err, says)
			}
		}
	}
	deleted, parts := remove(t, topology, &rabbitmq.DeleteOptions{Force: true}, nil)
	if !slices.Equal(deleted[:len(queues)], queues) || parts[0].Messages != 3 {
		t.Errorf("by force it deleted %q with %d messages, want %q with 3", deleted, parts[0].Messages, queues)
	}
}

// A service that the topology does not name keeps its queue, and gets what is published.
func TestAnExchangeThatOthersListenToStays(t *testing.T) {
	t.Parallel()
	topology, queues := shop(t)
	only := rabbitmq.Topology{Prefix: topology.Prefix, Services: topology.Services[:1]}
	deleted, parts := remove(t, only, nil, nil)
	if want := queues[:2]; !slices.Equal(deleted[:2], want) || slices.Contains(deleted, topology.Prefix+"ordered") {
		t.Errorf("it deleted %q, want %q and not the exchange", deleted, want)
	}
	if !slices.ContainsFunc(parts, func(p rabbitmq.Part) bool { return p.Shared && p.Name == topology.Prefix+"ordered" }) {
		t.Errorf("nothing says that the exchange stays: %+v", parts)
	}
	cfg, err := rabbitmq.NewConfig(rabbittest.URL(), "ship", &rabbitmq.ConfigOptions{Prefix: topology.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	messages, _ := subscribe(t, cfg, "ordered", fast())
	ackAll(t, messages, mustPublish(t, newPublisher(t, cfg, nil), "ordered", 1))
}

// A message that is published during the deletion is refused, and one that has just got into a queue is still
// there.
func TestAMessageThatComesDuringTheDeletionIsNotDeleted(t *testing.T) {
	t.Parallel()
	topology, queues := shop(t)
	cfg, err := rabbitmq.NewConfig(rabbittest.URL(), "pay", &rabbitmq.ConfigOptions{Prefix: topology.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	pub, ch := newPublisher(t, cfg, nil), rabbittest.Channel(t, rabbittest.URL())
	parts, err := topology.DeleteThrough(t.Context(), rabbittest.URL(), func() {
		if err := pub.Publish("ordered", newMessage("late")); !errors.Is(err, rabbitmq.ErrUnroutable) {
			t.Errorf("Publish = %v, want ErrUnroutable", err)
		}
		if err := ch.Confirm(false); err != nil {
			t.Error(err)
		}
		sent, err := ch.PublishWithDeferredConfirm("", queues[0], true, false, amqp.Publishing{MessageId: "early"})
		if err != nil || !sent.Wait() {
			t.Errorf("nothing got into the queue: %v", err)
		}
	})
	if !errors.Is(err, rabbitmq.ErrInUse) || parts[0].Deleted || parts[1].Deleted || !parts[2].Deleted {
		t.Fatalf("Delete = %+v, %v; want ErrInUse, and the first queue not deleted, nor its dead-letter queue", parts, err)
	}
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, "ordered"); err != nil {
		t.Fatal(err)
	}
	ids := mustPublish(t, pub, "ordered", 1)
	ids["early"] = true
	messages, _ := subscribe(t, cfg, "ordered", fast())
	ackAll(t, messages, ids)
}
