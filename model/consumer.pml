/* One step of one saga: its row in the inbox, the parked copies of its action and of its compensation, a broker that
 * delivers both in any order, several times, and again whatever is not acked, and two instances of the service that
 * may die, hang or lose a connection at every boundary.
 *
 * It follows consumer/execute.go, execute_claim.go, settle_deadletter.go and retry.go; decide is Decide of internal/inbox. A transaction is
 * atomic from the lock of the row to COMMIT, since nobody else can see the row in between; the handler is the one
 * point within it where time passes. Not in here: batches, ordered steps, effects, retention, redrives.
 */
#include "check.pml"

#ifndef COPIES
#define COPIES 2     /* of the action's message: the relay may publish it again */
#endif
#ifndef UNDOS
#define UNDOS 1      /* of the compensation's */
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#define MESSAGES (COPIES + UNDOS)
#define MAX_ATTEMPTS 2

#define ACTION 0
#define UNDO 1
#define KIND(d) (d < COPIES -> ACTION : UNDO)

mtype:state = { ABSENT, OPEN, RETRYING, DEAD, DONE, REFUSED, VOID, UNDOING, UNDO_DEAD, COMPENSATED };
mtype:verdict = { RUN, DUPLICATE, SUPERSEDED, TOMBSTONE, WAIT, REFUSE };
mtype:parking = { NONE, DUE, LEASED };

/* The database. */
mtype:state row = ABSENT;
byte tries[2];           /* entries into a handler, as far as the row knows */
byte lock;               /* who has the row locked; 0: nobody */
mtype:parking copy[2] = NONE;
byte taken[2];           /* attempts of the parked copy, the coming one included: its fence */
byte plock;              /* the kind of the parked copy that is locked, plus one */
bool letter[2];          /* a dead letter */

/* The broker: where each delivery is. */
#define NEW 0
#define AGAIN 1          /* it was delivered before, and says so */
#define GONE 2           /* acked */
#define HELD(who) (2 + who)

#define me (_pid + 1)    /* an instance */
byte at[MESSAGES];

/* What has happened. */
byte effects, undone, entries[2];
bool closed;             /* the compensation has come: there is nothing left, or there never was */
bool answered[2];        /* an answer was put into the outbox */
bool waited;             /* the row knows the compensation, which was parked behind its action */

byte faults = FAULTS;
bool vain = true;        /* one look at a parked copy that cannot run yet */

bool action_once = true;       /* G3: the action commits at most once */
bool undo_once = true;         /* G3: the compensation commits at most once */
bool never_after_undo = true;  /* G3: and never the action after it */
bool undo_of_done = true;      /* G3: nothing is undone that was not done */
bool acked_is_settled = true;  /* G4: acked after the effect, the parked copy or the dead letter has committed */
bool nothing_lost = true;      /* G4, G7: all that was published is handled, or a dead letter */
bool all_answered = true;      /* G4: a command is always answered, also where no handler is entered */
bool within_budget = true;     /* G6: N entries at most, one more for each further copy */

#define BUDGET(kind) (MAX_ATTEMPTS - 1 + (kind == ACTION -> COPIES : UNDOS))

#define WAITING (row == RETRYING || (row == OPEN && tries[ACTION] > 0))

#define SETTLED(kind) (copy[kind] != NONE || letter[kind] || \
	(kind == ACTION -> row == DONE || row == REFUSED || row == VOID || row == UNDOING || row == UNDO_DEAD || row == COMPENSATED \
	: row == VOID || row == UNDOING || row == UNDO_DEAD || row == COMPENSATED))

/* decide is the state machine. It is asked under the row's lock. */
inline decide() {
	if
	:: kind == ACTION && (row == VOID || row == COMPENSATED) -> v = SUPERSEDED
	:: kind == ACTION && (row == ABSENT || row == OPEN || (row == RETRYING && parked)) -> v = RUN
	:: kind == UNDO && ((row == DONE && (parked || !waited)) || (row == UNDOING && parked)) -> v = RUN
	:: kind == UNDO && (row == ABSENT || row == REFUSED || (row == OPEN && tries[ACTION] == 0)) -> v = TOMBSTONE
	:: kind == UNDO && row == DEAD -> v = REFUSE
	:: kind == UNDO && WAITING -> v = WAIT
	:: else -> v = DUPLICATE
	fi;
#ifdef BUG_INBOX_MISSING
	v = RUN;
#endif
#ifdef BUG_COMPENSATION_UNCONDITIONAL
	if :: kind == UNDO && row == VOID -> v = RUN :: else fi;
#endif
}

/* attempts: entries into the handler, the present one included. */
#define ATTEMPTS ((parked -> fence : tries[kind] + (counted -> 0 : 1)) - (exhausted -> 1 : 0))

/* forget deletes the parked copy in hand. */
inline forget() {
	if :: parked -> copy[kind] = NONE; taken[kind] = 0 :: else fi
}

inline bury() {
#ifndef BUG_POISON_DROPPED
	letter[kind] = true;
#endif
	answered[kind] = true; /* Step.Unhandled */
	forget()
}

/* park keeps the message for later, with n attempts spent. */
inline park() {
	if
	:: parked -> taken[kind] = n
	:: else -> if :: taken[kind] < n -> taken[kind] = n :: else fi /* a copy that is there stays */
	fi;
	copy[kind] = DUE
}

inline failure(terminal) {
	n = ATTEMPTS;
	tries[kind] = n;
#ifdef BUG_RETRIES_UNBOUNDED
	tries[kind] = 0; n = 0;
#endif
	if
	:: terminal || n >= MAX_ATTEMPTS ->
		bury();
		row = (kind == ACTION -> DEAD : UNDO_DEAD)
	:: else ->
		park();
		row = (kind == ACTION -> RETRYING : UNDOING)
	fi
}

inline success(to) {
	n = ATTEMPTS;
	if
	:: kind == UNDO ->
		undone++;
		MUST(undo_once, undone <= 1);
		MUST(undo_of_done, effects == 1);
		closed = true
	:: kind == ACTION && to == DONE ->
		effects++;
		MUST(action_once, effects <= 1);
		MUST(never_after_undo, !closed)
	:: else
	fi;
	answered[kind] = true;
	tries[kind] = n;
#ifdef BUG_DOUBLE_COMPENSATION
	if :: kind == UNDO -> skip :: else -> row = to fi;
#else
#ifndef BUG_INBOX_MISSING
	row = to;
#endif
#endif
	forget()
}

/* settle does what a verdict says about a message that enters no handler. */
inline settle() {
	if
	:: v == SUPERSEDED ->
		if
		:: redelivered && row == VOID && tries[ACTION] == 0 -> bury(); tries[ACTION] = 1
		:: else -> forget()
		fi
	:: v == TOMBSTONE ->
		closed = true;
#ifndef BUG_TOMBSTONE_UNANSWERED
		answered[UNDO] = true;
#endif
#ifndef BUG_TOMBSTONE_MISSING
		row = VOID;
#endif
		forget()
	:: v == WAIT -> waited = true; n = (parked -> fence - 1 : 0); park()
	:: v == REFUSE -> bury()
	:: v == DUPLICATE -> forget()
	fi
}

/* end_transaction chooses how COMMIT goes: answered, or not, and then it has happened or not. */
inline end_transaction() {
	if
	:: true -> applied = true; lost = false
	:: FAULT; applied = true; lost = true
	:: FAULT; applied = false; lost = true
	fi
}

inline unlock() { lock = 0; plock = 0 }

inline reset() {
	d = MESSAGES; kind = 0; parked = false; redelivered = false; counted = false; exhausted = false; entered = false;
	fence = 0; recorded = 0; n = 0; v = 0; applied = false; lost = false
}

/* die: the process ends, the server rolls back, the broker takes back what was not acked, leases run out. */
inline die() {
	if :: lock == me -> unlock() :: else fi;
	if :: d < MESSAGES && at[d] == HELD(me) -> at[d] = AGAIN :: else fi;
	if :: parked && copy[kind] == LEASED && taken[kind] == fence -> copy[kind] = DUE :: else fi
}

/* A parked copy is due, or its lease has run out under somebody who only hangs. SKIP LOCKED passes over a locked one. */
#define TAKEABLE(k) (plock != k + 1 && (copy[k] == DUE || (copy[k] == LEASED && faults > 0)) && (k == ACTION || !WAITING || vain))

inline take_parked(k) {
	if :: copy[k] == LEASED -> faults-- :: else fi;
	if :: k == UNDO && WAITING -> vain = false :: else fi;
	parked = true; kind = k;
	taken[k]++; fence = taken[k]; copy[k] = LEASED
}

inline take(i) {
	d = i; kind = KIND(i); redelivered = (at[i] == AGAIN);
	at[i] = HELD(me)
}

/* hand_back returns a parked copy whose step somebody else has locked. */
inline hand_back() {
	if :: copy[kind] == LEASED && taken[kind] == fence -> taken[kind]--; copy[kind] = DUE :: else fi
}

#ifdef BUG_FENCE_MISSING
#define MINE (copy[kind] != NONE)
#else
#define MINE (copy[kind] == LEASED && taken[kind] == fence)
#endif

active [2] proctype instance() {
	byte d, fence, n, recorded;
	bit kind;
	bool parked, redelivered, counted, exhausted, entered, applied, lost;
	mtype:verdict v;

rest:
	atomic { reset() }
end_idle:
	atomic {
		if /* copies that are alike are taken in their order */
		:: at[0] < GONE -> take(0)
#if MESSAGES > 1
		:: at[1] < GONE && !(at[1] == NEW && KIND(1) == KIND(0) && at[0] == NEW) -> take(1)
#endif
#if MESSAGES > 2
		:: at[2] < GONE && !(at[2] == NEW && KIND(2) == KIND(1) && at[1] == NEW) -> take(2)
#endif
#if MESSAGES > 3
		:: at[3] < GONE && !(at[3] == NEW && KIND(3) == KIND(2) && at[2] == NEW) -> take(3)
#endif
		:: TAKEABLE(ACTION) -> take_parked(ACTION)
		:: TAKEABLE(UNDO) -> take_parked(UNDO)
		fi;
		if
		:: parked && fence > MAX_ATTEMPTS -> exhausted = true; entered = true; goto record
		:: parked && fence <= MAX_ATTEMPTS -> goto open
		:: else
		fi;
#ifdef BUG_ACK_BEFORE_COMMIT
		MUST(acked_is_settled, SETTLED(kind)); at[d] = GONE;
#endif
	}

count: /* of a message that was delivered before, the entry is counted in a commit of its own */
	atomic {
		if
		:: FAULT; die(); goto rest
#ifdef BUG_CRASH_UNCOUNTED
		:: true -> goto open
#endif
		:: counted || !redelivered -> goto open
		:: !counted && redelivered && lock == 0
		fi;
		if
		:: kind == ACTION && row == ABSENT -> row = OPEN; tries[ACTION] = 2; counted = true /* the delivery before has most likely died in the handler */
		:: kind == ACTION && row == OPEN -> tries[ACTION]++; counted = true
		:: kind == UNDO && row == DONE -> tries[UNDO] = (tries[UNDO] == 0 -> 2 : tries[UNDO] + 1); counted = true
		:: else
		fi;
		if
		:: counted && tries[kind] > MAX_ATTEMPTS -> exhausted = true; entered = true; goto record
		:: else
		fi
	}

open: /* claim the row, or wait for who has it; a parked copy is given back instead */
	atomic {
		if
		:: FAULT; die(); goto rest
		:: parked && lock != 0 && vain -> vain = false; hand_back(); goto rest
		:: parked && lock == 0 && !MINE -> goto rest
		:: lock == 0 && (!parked || MINE) ->
#ifdef BUG_ABSENT_ROW_UNLOCKED
			if :: row != ABSENT -> lock = me :: else fi
#else
			lock = me
#endif
#if defined(BUG_ABSENT_ROW_UNLOCKED) || defined(BUG_INBOX_MISSING)
		:: !parked && lock != 0 && row == ABSENT
#endif
		fi;
		decide();
		if
		:: v == RUN ->
			if :: parked -> plock = kind + 1 :: else fi;
			entered = true;
			entries[kind]++;
			MUST(within_budget, entries[kind] <= BUDGET(kind))
		:: else ->
			end_transaction();
			if :: applied -> settle() :: else fi;
			unlock();
			if
			:: !lost -> goto ack
			:: lost && parked -> copy[kind] = (MINE -> DUE : copy[kind]); goto rest
			:: else -> goto count
			fi
		fi
	}

handler:
	atomic {
		if
		:: FAULT; die(); goto rest
		:: FAULT; unlock(); goto record /* the server has ended the session, as of a process that hangs */
		:: d < MESSAGES && at[d] == HELD(me) && faults > 0 -> faults--; at[d] = AGAIN; goto handler /* so has the broker */
		:: true ->
			end_transaction();
#ifdef BUG_INBOX_IN_ANOTHER_TRANSACTION
			if
			:: applied && kind == ACTION ->
				effects++;
				MUST(action_once, effects <= 1);
				unlock();
				if :: FAULT; die(); goto rest :: else fi;
				effects--
			:: else
			fi;
#endif
			if :: applied -> success((kind == ACTION -> DONE : COMPENSATED)) :: else fi
		:: kind == ACTION -> end_transaction(); if :: applied -> success(REFUSED) :: else fi
		:: true -> end_transaction(); if :: applied -> failure(false) :: else fi
		:: true -> end_transaction(); if :: applied -> failure(true) :: else fi
		fi;
		if :: lock == me -> unlock() :: else fi;
		if
		:: !lost -> goto ack
#ifdef BUG_LOST_COMMIT_REDONE
		:: lost -> goto handler
#endif
		:: else
		fi
	}

record: /* the outcome is looked up, and what is then known is recorded */
	atomic {
		applied = false; lost = false;
		if
		:: FAULT; die(); goto rest
		:: parked && lock != 0 && vain ->
			vain = false;
			if
			:: exhausted -> hand_back()
			:: else -> if :: MINE -> copy[kind] = DUE :: else fi
			fi;
			goto rest
		:: parked && lock == 0 && !MINE -> goto rest
		:: lock == 0 && (!parked || MINE)
		fi;
		decide();
		if :: v == RUN -> recorded = ATTEMPTS :: else fi;
		end_transaction();
		if
		:: applied && v == RUN -> failure(false)
		:: applied && v == DUPLICATE && recorded > 0 && tries[kind] >= recorded /* it was recorded the time before */
		:: applied && v == DUPLICATE && !(recorded > 0 && tries[kind] >= recorded) && (row == RETRYING || row == UNDOING) ->
			if :: copy[kind] != NONE -> taken[kind]++; copy[kind] = DUE :: else fi /* who holds it has lost its fence */
		:: applied && v != RUN && !(v == DUPLICATE && (recorded > 0 && tries[kind] >= recorded || row == RETRYING || row == UNDOING)) -> settle()
		:: else
		fi;
		if :: lost -> goto record :: else fi
	}

ack:
	atomic {
		if
		:: FAULT; die()
		:: d < MESSAGES && at[d] == HELD(me) -> MUST(acked_is_settled, SETTLED(kind)); at[d] = GONE
		:: d == MESSAGES || at[d] != HELD(me) /* a tag of a channel that is gone is not acked */
		fi;
		goto rest
	}
}

active proctype watch() {
	atomic {
		timeout;
		MUST(nothing_lost, copy[ACTION] == NONE && copy[UNDO] == NONE && SETTLED(ACTION) && (UNDOS == 0 || SETTLED(UNDO))
			&& (effects == 1 || row == REFUSED || letter[ACTION] || closed));
		MUST(all_answered, (answered[ACTION] || closed) && (UNDOS == 0 || answered[UNDO]));
		over = true
	}
}
