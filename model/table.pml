/* The outbox as a table whose rows are deleted once they are published (outbox.LogTable), and two relays. A pass is one
 * transaction: it locks the row of who publishes, and the oldest messages, publishes them, deletes them and commits.
 *
 * Three transactions write a message each. 1 and 3 have the same ordering key and serialise; 2 has drawn its id before
 * 3 and may commit after it. It follows outbox/table.go and sql_table.go. The server ends the session of a relay that
 * hangs in the middle of a pass; when it wakes up it goes on publishing, and cannot commit.
 */
#include "check.pml"

#ifndef FAULTS
#define FAULTS 3
#endif
#define MAX_ATTEMPTS 2

#define LAST 3
#define BIT(m) (1 << m)
#define UPTO(m) ((2 << m) - 1)
#define HAS(set, m) ((set & BIT(m)) != 0)

mtype:outcome = { UNDECIDED, PUBLISHED, REFUSED, BACK };

/* The database: sets of messages. */
byte begun, ended, stored;
byte held, dead;                /* refused: to be tried again, or for a person */
byte refusals[LAST + 1];
byte lock;                      /* who has the row of who publishes */
byte locked[3];                 /* messages that a relay has locked; 1 and 2 are the relays */

/* The broker. */
byte delivered, confirmed;

byte faults = FAULTS;

bool confirmed_first = true;    /* G2: it is forgotten only when the broker has confirmed it */
bool nothing_lost = true;       /* G2: what has committed is published, or a dead letter for a person */
bool ordered = true;            /* G5: messages of a key are first published in the order of their commits; the dead hold up nobody */

active proctype writers() {
end:
	do /* ids are drawn in their order */
	:: atomic { !HAS(begun, 1) -> begun = BIT(1) }
	:: atomic { begun == BIT(1) -> begun = begun | BIT(2) }
	:: atomic { HAS(begun, 2) && !HAS(begun, 3) && HAS(ended, 1) -> begun = begun | BIT(3) }
	:: atomic { HAS(begun, 1) && !HAS(ended, 1) -> ended = ended | BIT(1); stored = stored | BIT(1) }
	:: atomic { HAS(begun, 2) && !HAS(ended, 2) -> ended = ended | BIT(2); if :: stored = stored | BIT(2) :: skip fi }
	:: atomic { HAS(begun, 3) && !HAS(ended, 3) -> ended = ended | BIT(3); stored = stored | BIT(3) }
	od
}

#define me _pid
#define OTHERS locked[3 - me]
/* What a pass may take: refused messages that are due, and stored ones but those behind a refused one of their key. */
#define OPEN ((held | (stored & ~(HAS(held, 1) -> BIT(3) : 0))) & ~OTHERS)

#define FLYING(m) (HAS(batch, m) && o[m] == UNDECIDED)

/* Of a key one message is in flight, and none behind one that was not confirmed. */
#define TURN(m) (FLYING(m) && (m != 3 || !FLYING(1)))

inline publish(m) {
	if
	:: m == 3 && HAS(batch, 1) && o[1] != PUBLISHED -> o[m] = BACK
	:: else ->
		if
		:: true -> deliver(m); confirmed = confirmed | BIT(m); o[m] = PUBLISHED
		:: FAULT; o[m] = REFUSED
		:: FAULT; o[m] = BACK; if :: deliver(m) :: skip fi /* it does not answer */
		fi
	fi
}

inline deliver(m) {
	MUST(ordered, m != 3 || HAS(delivered, 3) || HAS(delivered, 1) || HAS(dead, 1));
	delivered = delivered | BIT(m)
}

inline settle(m) {
	if
	:: HAS(batch, m) && o[m] == PUBLISHED ->
		MUST(confirmed_first, HAS(confirmed, m));
		stored = stored & ~BIT(m); held = held & ~BIT(m)
	:: HAS(batch, m) && o[m] == REFUSED ->
		stored = stored & ~BIT(m); held = held & ~BIT(m);
		refusals[m]++;
		if
		:: refusals[m] >= MAX_ATTEMPTS -> dead = dead | BIT(m)
#ifdef BUG_REFUSED_IS_FORGOTTEN
		:: else
#else
		:: else -> held = held | BIT(m)
#endif
		fi
#ifdef BUG_DELETED_BEFORE_CONFIRM
	:: HAS(batch, m) && o[m] == BACK ->
		MUST(confirmed_first, HAS(confirmed, m));
		stored = stored & ~BIT(m)
#endif
	:: else
	fi
}

inline let_go() {
	locked[me] = 0;
	if :: lock == me -> lock = 0 :: else fi
}

inline reset() {
	batch = 0; o[1] = UNDECIDED; o[2] = UNDECIDED; o[3] = UNDECIDED
}

active [2] proctype relay() {
	byte batch;
	mtype:outcome o[LAST + 1] = UNDECIDED;

end:
	do
	:: atomic { /* begin a pass */
		batch == 0 && OPEN != 0 &&
#ifndef BUG_RELAYS_WITHOUT_LEASE
		lock == 0 ->
		lock = me;
#else
		true ->
#endif
		batch = OPEN;
		if /* limits of the batch */
		:: HAS(batch, 1) -> batch = BIT(1)
		:: HAS(batch, 2) -> batch = batch & UPTO(2)
		:: true
		fi;
		locked[me] = batch
	}
	:: atomic { TURN(1) -> publish(1) }
	:: atomic { TURN(2) -> publish(2) }
	:: atomic { TURN(3) -> publish(3) }
	:: atomic { /* end it */
		batch != 0 && !FLYING(1) && !FLYING(2) && !FLYING(3) ->
		if
		:: locked[me] != batch /* the session is gone */
		:: locked[me] == batch -> settle(1); settle(2); settle(3)
		:: locked[me] == batch && faults > 0 -> faults-- /* COMMIT has not happened; if it has and that is not heard of, all is the same as if it were */
		fi;
		let_go(); reset()
	}
	:: atomic { batch != 0 && faults > 0 -> faults--; let_go(); reset() } /* it dies */
	:: atomic { locked[me] != 0 && faults > 0 -> faults--; let_go() }     /* it hangs, and the server ends its session */
	od
}

active proctype watch() {
	atomic {
		timeout;
		MUST(nothing_lost, stored == 0 && held == 0 && (ended & ~(delivered | dead | BIT(2))) == 0);
		over = true
	}
}
