package outbox

import "strings"

// acceptStale makes what the active relay asks of the database true for any relay. It
// is wrong, and in no binary but one that is built with a bug of package planted.
func (q *queries) acceptStale() {
	for _, statement := range []*string{&q.renewLease, &q.listDifference, &q.fence, &q.checkpoint[0], &q.checkpoint[1]} {
		*statement = strings.NewReplacer("epoch = $1", "$1::bigint IS NOT NULL", "epoch = $6", "$6::bigint IS NOT NULL").Replace(*statement)
	}
}
