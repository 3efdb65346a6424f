package outbox

import (
	"context"
	"fmt"
	"time"
)

// Stats count the messages that have not been published.
type Stats struct {
	Stored  int           // committed, to be published next
	Oldest  time.Duration // age of the oldest of them; 0 if there is none
	Delayed int           // not due yet
	Refused int           // refused by the broker, backing off
	Dead    int           // refused until the attempts were used up; a person is needed
}

// Stats reads the counts. They are those of one instant.
func (r *Relay) Stats(ctx context.Context) (Stats, error) {
	var s Stats
	var age float64
	err := r.db.QueryRow(ctx, r.sql.readStats).Scan(&s.Stored, &age, &s.Delayed, &s.Refused, &s.Dead)
	if err != nil {
		return Stats{}, fmt.Errorf("outbox: read stats: %w", err)
	}
	s.Oldest = time.Duration(age * float64(time.Second))
	return s, nil
}
