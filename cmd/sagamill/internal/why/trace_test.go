package why

import (
	"testing"

	"github.com/sagamill/sagamill/operator"
)

func TestWhyWithoutARelay(t *testing.T) {
	t.Parallel()
	if got := formatBlocker(&operator.Blocker{}); got != "whose topic takes no messages" {
		t.Errorf("a message that is not refused is one %s", got)
	}
	if got := formatRelay(&site{out: operator.OutboxMessages{}}); got != "no relay is active" {
		t.Errorf("without a relay: %s", got)
	}
}
