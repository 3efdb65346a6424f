/* The whole way, coarsely: a client sends an order twice; two relays, of which one may hang and wake up again; a broker
 * that delivers in any order and again what is not acked; two processes that handle the messages of all services:
 *
 *     request ─► order ──pay──► charge ──ship──► shipment ──shipped──► completed
 *                                 │                 └─ rejected: ──refund──► refund ──refunded──► cancelled
 *                                 └─ declined ──────────────────────────────────────────────────► cancelled
 *
 * Each transaction is atomic, with a crash before and after it: what happens within one is what the other models are
 * about. Here their parts meet: what one of them guarantees is what the next one counts on.
 */
#include "check.pml"

#ifndef FAULTS
#define FAULTS 2
#endif

#define PAY 0
#define SHIP 1
#define SHIPPED 2
#define REFUND 3
#define CANCEL 4
#define MESSAGES 5
#define BIT(m) (1 << m)
#define HAS(set, m) ((set & BIT(m)) != 0)

mtype:status = { NONE, PENDING, DONE, CANCELLED };

/* The databases: sets of messages. */
byte outbox, noted;      /* stored; and noted as published */
byte inbox;              /* handled */
mtype:status order = NONE;
byte orders, charges, refunds, shipments;

byte claim;              /* the request that owns the key; 0: none */
byte epoch;              /* of the active relay, */
bool leased;             /* while its lease runs */

/* The broker. */
byte ready[MESSAGES];    /* copies that nobody has */
byte sent;               /* messages that it has confirmed */

bool told;               /* the client has heard of success */

byte faults = FAULTS;

bool order_once = true;        /* G1: the request commits at most once */
bool durable_first = true;     /* G1: and the client hears of it afterwards */
bool charge_once = true;       /* G3: each effect commits at most once, however often its message arrives */
bool confirmed_first = true;   /* G2: noted as published only once the broker has confirmed it */
bool no_ghosts = true;         /* G2: nothing is handled of what has rolled back */
bool handled_first = true;     /* G4: acked only once it is handled */
bool nothing_lost = true;      /* G2, G4: what is stored is handled */
bool money_conserved = true;   /* G3, G7: charged and shipped, or as if nothing had been */

inline emit(m) { outbox = outbox | BIT(m) }

/* A request. An instance that dies loses its claim when the lease is over. */
active [2] proctype request() {
	byte tries = 0;
#define me (_pid + 1)

end:
	do
	:: atomic { order != NONE && tries < 2 -> told = true; tries = 2 } /* a replay */
	:: atomic { order == NONE && claim == 0 && tries < 2 -> claim = me; tries++ }
	:: atomic {
		claim == me ->
		if
		:: true ->
			orders++; MUST(order_once, orders <= 1);
			order = PENDING; emit(PAY); claim = 0;
			if
			:: MUST(durable_first, order != NONE); told = true
			:: FAULT /* the answer is lost, or COMMIT's and is looked up */
#ifdef BUG_LOST_COMMIT_REDONE
			; order = NONE
#endif
			fi
#ifdef BUG_ANSWER_BEFORE_COMMIT
		:: true -> MUST(durable_first, order != NONE); told = true
#endif
		:: FAULT; claim = 0
		fi
	}
	od
#undef me
}

active [2] proctype relay() {
	byte mine;           /* epoch */
	byte m = MESSAGES;   /* in flight */

end:
	do
	:: atomic { mine == 0 && !leased && (outbox & ~noted) != 0 -> leased = true; epoch++; mine = epoch }
	:: atomic {
		mine != 0 && m == MESSAGES && (outbox & ~noted) != 0 ->
		if
		:: HAS(outbox & ~noted, PAY) -> m = PAY
		:: HAS(outbox & ~noted, SHIP) -> m = SHIP
		:: HAS(outbox & ~noted, SHIPPED) -> m = SHIPPED
		:: HAS(outbox & ~noted, REFUND) -> m = REFUND
		:: HAS(outbox & ~noted, CANCEL) -> m = CANCEL
		fi
#ifdef BUG_MARK_BEFORE_CONFIRM
		; noted = noted | BIT(m); MUST(confirmed_first, HAS(sent, m))
#endif
	}
	:: atomic {
		m < MESSAGES ->
		ready[m]++; sent = sent | BIT(m);
		if
		:: mine == epoch -> noted = noted | BIT(m); MUST(confirmed_first, HAS(sent, m))
		:: mine == epoch && faults > 0 -> faults--; mine = 0; leased = false /* dies before it has noted that */
		:: mine != epoch -> mine = 0
		fi;
		m = MESSAGES
	}
	:: atomic { mine == epoch && leased && faults > 0 -> faults--; leased = false } /* hangs beyond its lease */
	:: atomic { mine == epoch && leased && m == MESSAGES && (outbox & ~noted) == 0 -> mine = 0; leased = false }
	od
}

/* handle is the transaction: the inbox row, the effect, and what follows. */
inline handle() {
	if
#ifndef BUG_INBOX_MISSING
	:: HAS(inbox, m) /* a duplicate */
	:: !HAS(inbox, m) ->
#else
	:: true ->
#endif
		MUST(no_ghosts, HAS(outbox, m));
		inbox = inbox | BIT(m);
		if
		:: m == PAY ->
			if
			:: charges++; MUST(charge_once, charges <= 1); emit(SHIP)
			:: emit(CANCEL)
			fi
		:: m == SHIP ->
			if
			:: shipments++; MUST(charge_once, shipments <= 1); emit(SHIPPED)
#ifdef BUG_REFUND_MISSING
			:: emit(CANCEL)
#else
			:: emit(REFUND)
#endif
			fi
		:: m == REFUND ->
			refunds++; MUST(charge_once, refunds <= 1);
			emit(CANCEL)
		:: m == SHIPPED -> order = DONE
		:: m == CANCEL -> order = CANCELLED
		fi
	fi
}

active [2] proctype service() {
	byte m = MESSAGES;   /* in hand, not acked */

end:
	do
	:: atomic {
		m == MESSAGES && (ready[PAY] > 0 || ready[SHIP] > 0 || ready[SHIPPED] > 0 || ready[REFUND] > 0 || ready[CANCEL] > 0) ->
		if
		:: ready[PAY] > 0 -> m = PAY
		:: ready[SHIP] > 0 -> m = SHIP
		:: ready[SHIPPED] > 0 -> m = SHIPPED
		:: ready[REFUND] > 0 -> m = REFUND
		:: ready[CANCEL] > 0 -> m = CANCEL
		fi;
		ready[m]--;
#ifdef BUG_ACK_BEFORE_COMMIT
		MUST(handled_first, HAS(inbox, m));
		if :: FAULT; m = MESSAGES :: else fi
#endif
#ifdef BUG_PUBLISHED_BY_HANDLER
		/* what the handler is about to emit is published by it, and its transaction then rolls back */
		if :: m == PAY && faults > 0 -> faults--; ready[SHIP]++ :: else fi
#endif
	}
	:: atomic {
		m < MESSAGES ->
		if
		:: true -> handle(); MUST(handled_first, HAS(inbox, m))
		:: FAULT; handle(); ready[m]++ /* dies after COMMIT, or is not told of it, or its ack is lost */
#ifdef BUG_AUTOMATIC_ACK
		:: FAULT
#else
		:: FAULT; ready[m]++           /* dies before COMMIT */
#endif
		fi;
		m = MESSAGES
	}
	od
}

active proctype watch() {
	atomic {
		timeout;
		MUST(nothing_lost, outbox == inbox && (!told || order == DONE || order == CANCELLED));
		MUST(money_conserved, (order != DONE || (charges == 1 && refunds == 0 && shipments == 1))
			&& (order != CANCELLED || (charges == refunds && shipments == 0)));
		over = true
	}
}
