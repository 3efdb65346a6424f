package sagatest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/guard"
)

// findPanic returns the value and the stack of the panic in err, if there is one.
func findPanic(err error) (value any, stack []byte, ok bool) {
	var handlers *consumer.PanicError
	var definitions *guard.PanicError
	switch {
	case errors.As(err, &handlers):
		return handlers.Value, handlers.Stack, true
	case errors.As(err, &definitions):
		return definitions.Value, definitions.Stack, true
	}
	return nil, nil, false
}

// explainError returns err for people. A panic comes with its line of code, and with the option that sets tx if a nil
// tx is the likely cause.
func explainError(err error, hasTx bool, option string) string {
	value, stack, ok := findPanic(err)
	if !ok {
		return err.Error()
	}
	text := fmt.Sprintf("it panicked: %v%s", value, panickedAt(string(stack)))
	if !hasTx && strings.Contains(fmt.Sprint(value), "nil pointer") {
		text += "; " + option + " is not set, so tx is nil: does it use that?"
	}
	return text
}

// panickedAt returns the line of code that has panicked: the first one below the panic that is not the runtime's.
func panickedAt(stack string) string {
	_, below, _ := strings.Cut(stack, "\npanic(")
	lines := strings.Split(below, "\n")
	for i := 2; i+1 < len(lines); i += 2 {
		if !strings.HasPrefix(lines[i], "runtime.") && !strings.HasPrefix(lines[i], "panic(") {
			place, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " +0x")
			return ", at " + place
		}
	}
	return ""
}
