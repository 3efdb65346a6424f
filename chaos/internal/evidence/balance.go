package evidence

// An invariant holds in every snapshot of the database, even while transactions are under way.
type invariant struct{ says, against string }

// shown is how many contradictions of an invariant a Sample names.
const shown = "5"

// Each invariant goes from a later commit to the earlier one: a recorded payment has been charged, a completed
// order has been shipped. The reverse may be false in a snapshot. Each statement returns its contradictions as
// rows of one column.
var invariants = []invariant{
	{"an order has at most one charge and one refund, of the same amount, and that is the order's", `
		SELECT l.order_id FROM (
			SELECT order_id, count(*) FILTER (WHERE kind = 'charge') AS charges, count(*) FILTER (WHERE kind = 'refund') AS refunds,
				max(amount) FILTER (WHERE kind = 'charge') AS charged, max(amount) FILTER (WHERE kind = 'refund') AS refunded
			FROM payment_gateway.ledger GROUP BY order_id) l
		LEFT JOIN order_service.orders o ON o.id = l.order_id::uuid
		WHERE charges <> 1 OR refunds > 1 OR charged IS DISTINCT FROM o.amount OR refunds = 1 AND refunded <> charged`},
	{"a payment that is noted is in the ledger", `
		SELECT p.order_id::text FROM payment_service.payment p LEFT JOIN (
			SELECT order_id::uuid AS order_id, count(*) FILTER (WHERE kind = 'charge') AS charges, count(*) FILTER (WHERE kind = 'refund') AS refunds
			FROM payment_gateway.ledger GROUP BY order_id) l USING (order_id)
		WHERE coalesce(l.charges, 0) <> CASE p.state WHEN 'declined' THEN 0 ELSE 1 END OR p.state = 'refunded' AND l.refunds <> 1`},
	{"what is shipped is paid, and what is refunded is not shipped", `
		SELECT s.order_id::text FROM shipping_service.shipment s LEFT JOIN payment_service.payment p USING (order_id)
		WHERE p.order_id IS NULL OR p.state = 'declined' OR p.state = 'refunded' AND s.state = 'arranged'`},
	{"a refunded payment is of a shipment that was rejected", `
		SELECT p.order_id::text FROM payment_service.payment p LEFT JOIN shipping_service.shipment s USING (order_id)
		WHERE p.state = 'refunded' AND s.state IS DISTINCT FROM 'rejected'`},
	{"an order has ended as its payment and its shipment have", `
		SELECT o.id::text FROM order_service.orders o
		LEFT JOIN payment_service.payment p ON p.order_id = o.id LEFT JOIN shipping_service.shipment s ON s.order_id = o.id
		WHERE o.status = 'completed' AND (p.state IS DISTINCT FROM 'charged' OR s.state IS DISTINCT FROM 'arranged')
			OR o.status = 'cancelled' AND coalesce(p.state, '') NOT IN ('declined', 'refunded')
			OR o.status = 'paid' AND coalesce(p.state, 'declined') = 'declined'`},
	{"what a stock lacks is held by somebody", `
		SELECT kind || ' ' || item FROM (
			SELECT 'flight' AS kind, s.*, (SELECT count(*) FROM flight_service.booking b WHERE b.item = s.item AND b.state = 'held') AS held FROM flight_service.stock s
			UNION ALL
			SELECT 'hotel', s.*, (SELECT count(*) FROM hotel_service.booking b WHERE b.item = s.item AND b.state = 'held') FROM hotel_service.stock s
			UNION ALL
			SELECT 'car', s.*, (SELECT count(*) FROM car_service.booking b WHERE b.item = s.item AND b.state = 'held') FROM car_service.stock s) s
		WHERE free < 0 OR capacity - free <> held`},
	{"a trip holds each thing once at most", `
		SELECT kind || ' ' || trip_id FROM (
			SELECT 'flight' AS kind, trip_id FROM flight_service.booking UNION ALL
			SELECT 'hotel', trip_id FROM hotel_service.booking UNION ALL
			SELECT 'car', trip_id FROM car_service.booking) b
		GROUP BY kind, trip_id HAVING count(*) > 1`},
	{"a ticket is of a trip that holds flight and hotel, and is its only one", `
		SELECT t.trip_id::text FROM ticketing_service.ticket t
		LEFT JOIN flight_service.booking f ON f.trip_id = t.trip_id LEFT JOIN hotel_service.booking h ON h.trip_id = t.trip_id
		LEFT JOIN car_service.booking c ON c.trip_id = t.trip_id
		GROUP BY t.trip_id
		HAVING count(*) > 1 OR min(f.state) IS DISTINCT FROM 'held' OR min(h.state) IS DISTINCT FROM 'held' OR coalesce(min(c.state), 'held') <> 'held'`},
	{"a mail is of a trip with a ticket, and the only one that was sent", `
		SELECT m.trip_id::text FROM mail_service.mail m LEFT JOIN ticketing_service.ticket t USING (trip_id)
		GROUP BY m.trip_id HAVING count(*) FILTER (WHERE m.state = 'sent') > 1 OR count(t.trip_id) = 0`},
	{"a trip has an itinerary if and only if it is completed, and then its mail was sent", `
		SELECT s.id::text FROM trip_service.saga s
		LEFT JOIN trip_service.itinerary i ON i.trip_id = s.id LEFT JOIN mail_service.mail m ON m.trip_id = s.id AND m.state = 'sent'
		WHERE (s.status = 'completed') <> (i.trip_id IS NOT NULL) OR i.trip_id IS NOT NULL AND m.trip_id IS NULL`},
	{"a trip that is compensated holds nothing and has no ticket", `
		SELECT s.id::text FROM trip_service.saga s
		WHERE s.status = 'compensated' AND (
			EXISTS (SELECT FROM flight_service.booking b WHERE b.trip_id = s.id AND b.state = 'held')
			OR EXISTS (SELECT FROM hotel_service.booking b WHERE b.trip_id = s.id AND b.state = 'held')
			OR EXISTS (SELECT FROM car_service.booking b WHERE b.trip_id = s.id AND b.state = 'held')
			OR EXISTS (SELECT FROM ticketing_service.ticket t WHERE t.trip_id = s.id))`},
}

// sqlMoney returns charges less refunds, and sqlDone the number of sagas that have ended.
const (
	sqlMoney = `SELECT coalesce(sum(CASE kind WHEN 'charge' THEN amount ELSE -amount END), 0)::bigint FROM payment_gateway.ledger`
	sqlDone  = `SELECT (SELECT count(*) FROM order_service.orders WHERE status IN ('completed', 'cancelled')) + (SELECT count(*) FROM trip_service.saga WHERE ended_at IS NOT NULL)`
)

// sqlSessions counts the sessions of this database's clients, and those idle in a transaction for ten seconds.
// It also returns the text that the session list shows of all sessions.
const sqlSessions = `
SELECT count(*), count(*) FILTER (WHERE state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '10 s'),
	convert_to(coalesce(string_agg(usename || ' ' || application_name || ' ' || query, chr(10)), ''), 'UTF8')
FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'`
