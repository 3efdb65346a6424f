// Package traceheader adds W3C trace headers to those of a message, within the
// limits of the outbox.
package traceheader

import (
	"maps"

	"github.com/sagamill/sagamill/internal/cleantext"
)

// The names, as W3C Trace Context has them.
const (
	Parent = "traceparent"
	State  = "tracestate"
)

// maxValue is the length over which a value is not passed on. W3C demands that
// 512 bytes of a tracestate are.
const maxValue = 512

// Limits are those of a message's headers: how many, and the bytes of names and
// values together.
type Limits struct{ Count, Bytes int }

// Add returns headers with parent and state, and does not change headers. They
// stay as they are if they have a trace of their own, if parent is nothing that
// can be sent, or if limits leave no room for it: a trace is never worth a
// message that is refused.
func Add(headers map[string]string, limits Limits, parent, state string) map[string]string {
	if headers[Parent] != "" || !sendable(parent) || !limits.allow(headers, Parent, parent) {
		return headers
	}
	all := make(map[string]string, len(headers)+2)
	maps.Copy(all, headers)
	all[Parent] = parent
	if _, own := headers[State]; !own && sendable(state) && limits.allow(all, State, state) {
		all[State] = state
	}
	return all
}

// Keep returns what can be passed on of a trace, "" for what cannot.
func Keep(parent, state string) (string, string) {
	if !sendable(parent) {
		return "", ""
	}
	if !sendable(state) {
		state = ""
	}
	return parent, state
}

// allow reports whether there is room for one more.
func (l Limits) allow(headers map[string]string, name, value string) bool {
	size := len(name) + len(value)
	for n, v := range headers {
		size += len(n) + len(v)
	}
	return len(headers) < l.Count && size <= l.Bytes
}

func sendable(value string) bool {
	return value != "" && len(value) <= maxValue && cleantext.Printable(value)
}

// A Carrier holds the headers of one message for what puts a trace into them or
// takes it out, such as OpenTelemetry's propagators.
type Carrier struct{ Parent, State string }

// Get implements a carrier.
func (c *Carrier) Get(name string) string {
	switch name {
	case Parent:
		return c.Parent
	case State:
		return c.State
	}
	return ""
}

// Set implements a carrier. What is no trace header is dropped.
func (c *Carrier) Set(name, value string) {
	switch name {
	case Parent:
		c.Parent = value
	case State:
		c.State = value
	}
}

// Keys implements a carrier.
func (c *Carrier) Keys() []string { return []string{Parent, State} }
