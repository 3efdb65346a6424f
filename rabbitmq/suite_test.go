package rabbitmq_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// features are what the suite may expect. Not among them: deliveries exactly once,
// old messages for new subscribers (a queue forgets what was acked), and contexts
// that travel with a message.
var features = tests.Features{ConsumerGroups: true, GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true, Persistent: true}

// TestSuite runs watermill's suite on a private broker, because the suite does not list the topics that it
// leaves behind. The suite's test of a restarted broker reads data while it still writes them, so it cannot
// pass the race detector: TestPrivateBrokerSuiteRestarts runs it then.
func TestSuite(t *testing.T) {
	needtest.Shortened(t)
	node := rabbittest.StartNode(t)
	features, passed := features, make(chan struct{}, 1)
	if !raceDetector {
		features.RestartServiceCommand = restartCommand(t, node, passed)
	}
	pubSub, withGroup := constructors(node, passed)
	tests.TestPubSub(t, features, pubSub, withGroup)
}

// TestPrivateBrokerSuiteRestarts runs the one test that TestSuite leaves out, in a program
// built without the race detector.
func TestPrivateBrokerSuiteRestarts(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	if !raceDetector {
		return // TestSuite has run it
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("NOT TESTED: there is no go command to build the suite without the race detector")
	}
	ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
	defer cancel()
	program := filepath.Join(t.TempDir(), "suite.test")
	if out, err := exec.CommandContext(ctx, tool, "test", "-race=false", "-c", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build the suite: %v: %s", err, out)
	}
	out, err := exec.CommandContext(ctx, program, "-test.v", "-test.run=^TestSuite$/^TestReconnect$").CombinedOutput()
	if err != nil || bytes.Count(out, []byte("server restarted")) != 2 {
		said := slices.DeleteFunc(strings.Split(string(out), "\n"), func(line string) bool { return line == "publishing message" })
		t.Errorf("suite with restarts: %v:\n%s", err, strings.Join(said, "\n"))
	}
}

// buildTimeout is for building the suite and running one test of it.
const buildTimeout = 10 * time.Minute

// stress is the environment variable that lets TestStressSuite run, which takes
// 90 s on two busy processors, and more with the race detector.
const stress = "SAGAMILL_TEST_STRESS"

// TestStressSuite runs the same suite ten times at once, or STRESS_TEST_COUNT
// times; without restarts, which would hit the other nine: they publish with five
// tries and no patience. To run it:
//
//	SAGAMILL_TEST_STRESS=1 make test PKG=./rabbitmq RACE=
func TestStressSuite(t *testing.T) {
	if os.Getenv(stress) == "" {
		t.Skip("NOT TESTED: set " + stress + " to run watermill's stress test")
	}
	pubSub, withGroup := constructors(rabbittest.StartNode(t), nil)
	tests.TestPubSubStressTest(t, features, pubSub, withGroup)
}

// constructors return what the suite makes its Publishers and Subscribers with.
// All messages have one key, because the suite takes a second one before the ack of
// the first for a fault; and it never acks some. In the suite's test of restarts a
// message that is passed on leaves a token in passed.
func constructors(node *rabbittest.Node, passed chan<- struct{}) (tests.PubSubConstructor, tests.ConsumerGroupPubSubConstructor) {
	withGroup := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		cfg, err := rabbitmq.NewConfig(node.URL(), strings.ReplaceAll(group, ".", "-"), nil)
		if err != nil {
			t.Fatal(err)
		}
		pub, err := rabbitmq.NewPublisher(cfg, &rabbitmq.PublisherOptions{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		sub, err := rabbitmq.NewSubscriber(cfg, &rabbitmq.SubscriberOptions{
			Key:    func(*message.Message) string { return "one" },
			Logger: quiet, DrainTimeout: 100 * time.Millisecond, NackDelay: 10 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sub.Close() }) // the suite leaves one of fifty open
		if strings.Contains(t.Name(), "TestReconnect") {
			n := &notes{published: map[string]*note{}}
			return notingPublisher{pub, n}, awaitingSubscriber{sub, n, passed, t.Context()}
		}
		return pub, sub
	}
	return func(t *testing.T) (message.Publisher, message.Subscriber) { return withGroup(t, service) }, withGroup
}

// notes tell which messages the suite knows to be published. Its test of restarts
// ends with the last delivery, and takes a message for one too many whose Publish
// has not returned yet, or whose sender has not come round to writing it down.
type notes struct {
	mu        sync.Mutex
	published map[string]*note
}

type note struct {
	done chan struct{} // closed when Publish has returned
	at   time.Time     // when it had
}

// noteDelay is more than a sender needs to write down what it has published.
const noteDelay = 500 * time.Millisecond

func (n *notes) of(id string) *note {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.published[id] == nil {
		n.published[id] = &note{done: make(chan struct{})}
	}
	return n.published[id]
}

type notingPublisher struct {
	*rabbitmq.Publisher
	notes *notes
}

func (p notingPublisher) Publish(topic string, messages ...*message.Message) error {
	err := p.Publisher.Publish(topic, messages...)
	for _, msg := range messages {
		if n := p.notes.of(msg.UUID); err == nil {
			n.at = time.Now()
			close(n.done)
		}
	}
	return err
}

// An awaitingSubscriber passes a message on once it is noted.
type awaitingSubscriber struct {
	*rabbitmq.Subscriber
	notes  *notes
	passed chan<- struct{} // gets a token, if it has room, for a message that was passed on
	test   context.Context
}

func (s awaitingSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.Subscriber.Subscribe(ctx, topic)
	out := make(chan *message.Message)
	go func() { // ends with the test
		defer close(out)
		for msg := range in {
			select {
			case <-s.notes.of(msg.UUID).done:
			case <-s.test.Done():
				return
			}
			select {
			case <-time.After(noteDelay - time.Since(s.notes.of(msg.UUID).at)):
			case <-s.test.Done():
				return
			}
			select {
			case out <- msg:
			case <-s.test.Done():
				return
			}
			select {
			case s.passed <- struct{}{}:
			default:
			}
		}
	}()
	return out, err
}

// restartWord makes the test binary a command that asks the test, at the URL that
// follows, to restart its node, and waits for it: see [TestMain].
const restartWord = "restart-node"

// restartCommand returns the command that the suite runs to restart node. A restart waits for the one before and
// for a message passed on after it. The suite gives up after a minute without a message: two restarts in a row
// take that long on a busy machine.
func restartCommand(t *testing.T, node *rabbittest.Node, passed chan struct{}) []string {
	t.Helper()
	var turn sync.Mutex
	passed <- struct{}{} // for the first restart
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		turn.Lock()
		defer turn.Unlock()
		select {
		case <-passed:
		case <-t.Context().Done():
			return
		}
		if err := node.Restart(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
		select { // a message passed on before
		case <-passed:
		default:
		}
	}))
	t.Cleanup(server.Close)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{program, restartWord, server.URL}
}

// askForRestart is the command of restartWord.
func askForRestart(url string) error {
	response, err := http.Post(url, "", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("restart: %s", response.Status)
	}
	return nil
}
