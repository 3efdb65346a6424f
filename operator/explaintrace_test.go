package operator

import (
	"testing"
)

func TestWhyWithoutARelay(t *testing.T) {
	t.Parallel()
	if got := formatBlocker(&Blocker{}); got != "whose topic takes no messages" {
		t.Errorf("a message that is not refused is one %s", got)
	}
	if got := formatRelay(&SagaPart{Outbox: OutboxMessages{}}); got != "no relay is active" {
		t.Errorf("without a relay: %s", got)
	}
}
