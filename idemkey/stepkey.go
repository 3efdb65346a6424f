package idemkey

import (
	"errors"
	"fmt"

	"github.com/sagamill/sagamill/internal/stepkey"
)

// ErrStepKey reports a key, step or n outside the grammar of the step key.
var ErrStepKey = errors.New("idemkey: invalid step key")

// StepKey joins a client's key, the name of a saga's step and, unless it is
// empty, the n that tells several messages to one step apart, to
// "<key>:<step>[#<n>]". Its error is an [ErrStepKey].
func StepKey(key, step, n string) (string, error) {
	k := stepkey.Key{Key: key, Step: step, N: n}
	if err := k.Check(); err != nil {
		return "", fmt.Errorf("%w: %w", ErrStepKey, err)
	}
	return k.String(), nil
}

// ParseStepKey splits what [StepKey] joined, at the last colon. Its error is an
// [ErrStepKey] and never repeats s.
func ParseStepKey(s string) (key, step, n string, err error) {
	k, err := stepkey.Parse(s)
	if err != nil {
		return "", "", "", fmt.Errorf("%w: %w", ErrStepKey, err)
	}
	return k.Key, k.Step, k.N, nil
}
