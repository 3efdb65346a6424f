// Package traceheader adds W3C trace headers to the headers of a message, within the limits of the outbox.
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

// maxValue is the longest value, in bytes, that is passed on. W3C demands at least 512 bytes of a tracestate.
const maxValue = 512

// Limits are the limits of a message's headers: their number, and the bytes of all names and values together.
type Limits struct{ Count, Bytes int }

// Add returns headers with parent and state, and does not modify headers. It returns headers as they are if
// they have a trace already, if parent cannot be sent, or if limits leave no room. A message must never be
// refused because of its trace.
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

// Keep returns parent and state, each replaced by "" if it cannot be passed on.
func Keep(parent, state string) (string, string) {
	if !sendable(parent) {
		return "", ""
	}
	if !sendable(state) {
		state = ""
	}
	return parent, state
}

// allow reports whether there is room for one more header.
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

// A Carrier gives a propagator, such as OpenTelemetry's, access to the trace headers of one message.
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

// Set implements a carrier. It drops a header that is not a trace header.
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
