package outbox

import "time"

// Brisk lets r's housekeeping, which would take minutes, come with every few messages.
func (r *Relay) Brisk() {
	r.limits.cursors = 5
	r.limits.rotate, r.limits.held, r.limits.promote = 5*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
	r.limits.first, r.limits.keys = 2, 2
}

// LeadUnfinished is what the log says of a tenure that ends before all that it has read is settled.
const LeadUnfinished = leadUnfinished
