/* One idempotency key: a client that sends its request again, to two instances that may die, hang or lose a connection at
 * every boundary, and the key's record in PostgreSQL.
 *
 * It follows idemkey/idempg/leased.go and execution.go (ClaimLeased). The server goes on by itself with a COMMIT whose
 * client is gone: it may come to it late, with the row locked until then. Not in here: fingerprints, expiry and the sweep,
 * limits of attempts, ClaimInline, streams, handlers that end the transaction themselves.
 */
#include "check.pml"

#ifndef REQUESTS
#define REQUESTS 3       /* that the client sends, one after the other or at once */
#endif
#ifndef FAULTS
#define FAULTS 2
#endif

mtype:state = { ABSENT, CLAIMED, FAILED, COMPLETED };

/* The record. Each run has a number of its own: its token, and the response that it makes. */
mtype:state state = ABSENT;
byte token, response;
byte lock;               /* the run whose transaction has the row locked; 0: none */
bool lapsed;             /* the lease has run out */

byte orders;             /* business commits */

/* What runs have sent and the server has not come to yet: COMMIT, with the record before it. */
bool late[REQUESTS + 1];
bool begun[REQUESTS + 1]; /* its transaction is open, and has the lock */

byte runs;               /* so far */
byte told;               /* the response that the client has been given; 0: none */

byte faults = FAULTS;

bool commit_once = true;       /* G1: at most one business commit for a key */
bool durable_first = true;     /* G1: no byte of a response leaves before its outcome is durable */
bool same_answer = true;       /* G1: a replay is the response that was given before */
bool record_tells = true;      /* G1: there is never a business commit without its record, nor the other way round */

/* commit executes what stands before COMMIT, and COMMIT: it fails where another run has the record. A transaction that
 * the handler has asked nothing of begins here, and commits nothing but the record. */
#ifdef BUG_CLAIM_BY_CLOCK
#define FENCE(r) true
#else
#define FENCE(r) (token == r && state == CLAIMED)
#endif

inline commit(r, business) {
	if
	:: FENCE(r) ->
#ifndef BUG_RECORD_MISSING
		state = COMPLETED; response = r;
#endif
		if
		:: business -> orders++; MUST(commit_once, orders <= 1)
		:: else
		fi
	:: else
	fi;
	if :: lock == r -> lock = 0 :: else fi
}

#define OWNED(r) (token == r && state == CLAIMED && (lock == 0 || lock == r))

/* give_up frees the record for another run, unless its transaction is not over. */
inline give_up() {
	if :: OWNED(mine) && lock == 0 -> state = FAILED :: else fi
}

inline answer(r) {
	MUST(durable_first, state == COMPLETED && response == r);
	MUST(same_answer, told == 0 || told == r);
	told = r
}

inline die() {
	if :: open && !late[mine] && lock == mine -> lock = 0 :: else fi
}

active [2] proctype instance() {
	byte mine, seen;
	bool open;           /* the transaction has begun, as far as this instance knows */
	bool rejects;

rest:
	atomic { mine = 0; seen = 0; open = false; rejects = false }
end_next:
	atomic { runs < REQUESTS -> runs++; mine = runs }
claim:
	atomic {
		if
		:: FAULT; goto rest
		:: state == ABSENT -> state = CLAIMED; token = mine; lapsed = false
		:: state == ABSENT && faults > 0 -> faults--; state = CLAIMED; token = mine; lapsed = false; goto rest /* the claim is made and not heard of */
#ifdef BUG_ANSWER_MADE_ANEW
		:: state == COMPLETED -> response = mine; answer(mine); goto rest
#else
		:: state == COMPLETED -> answer(response); goto rest
#endif
		:: state == CLAIMED && !lapsed -> goto rest /* in flight: the client comes back */
		:: state == CLAIMED -> lapsed = true; seen = token; goto take_over
		:: state == FAILED -> seen = token; goto take_over
		fi;
		goto begin
	}
take_over: /* by compare and set; a lock says that the owner lives, however long ago its lease ran out */
	atomic {
		if
#ifndef BUG_CLAIM_BY_CLOCK
		:: token == seen && (state == FAILED || (state == CLAIMED && lapsed)) && lock == 0 ->
#else
		:: token == seen && (state == FAILED || (state == CLAIMED && lapsed)) ->
#endif
			state = CLAIMED; token = mine; lapsed = false; seen = 0
		:: else -> goto rest
		fi
	}
begin: /* with the handler's first statement, if it has one */
	atomic {
		if
		:: FAULT; goto rest
#ifdef BUG_CLAIM_BY_CLOCK
		:: token == mine && state == CLAIMED -> open = true
#else
		:: token == mine && state == CLAIMED && lock == 0 -> lock = mine; open = true
#endif
		:: !(token == mine && state == CLAIMED && lock == 0) -> goto rest /* the lease is lost */
		:: true -> skip /* it asks for nothing */
		fi
	}
handler:
	atomic {
		if
		:: FAULT; die(); goto rest
		:: open && faults > 0 -> faults--; lock = 0; give_up(); goto rest /* the server has ended the session */
		:: true -> goto send
		:: true -> rejects = true; die(); goto keep
		:: true -> die(); give_up(); goto rest
		fi
	}
send: /* COMMIT: answered, or not; then it has happened, has not, or happens later */
	atomic {
#ifdef BUG_ANSWER_BEFORE_COMMIT
		answer(mine);
#endif
		if
#ifdef BUG_RECORD_AFTER_COMMIT
		:: token == mine && state == CLAIMED ->
			if :: open -> orders++; MUST(commit_once, orders <= 1) :: else fi;
			if :: lock == mine -> lock = 0 :: else fi;
			goto keep
#else
		:: true -> commit(mine, open); if :: state == COMPLETED && response == mine -> answer(mine) :: else fi; goto rest
#endif
		:: FAULT; commit(mine, open)
		:: FAULT; die()
		:: FAULT; late[mine] = true; begun[mine] = open
		fi;
		if
		:: goto look
		:: FAULT; goto rest /* nobody asks */
		fi
	}
look: /* on another connection: what the record says, if it is not locked */
	atomic {
#ifdef BUG_LOST_COMMIT_FREED
		if :: state != ABSENT && token == mine -> state = FAILED :: else fi;
		goto rest;
#endif
		if
		:: FAULT; goto rest
		:: token == mine && lock == 0 && state == COMPLETED -> answer(mine); goto rest
		:: token == mine && lock == 0 && state == CLAIMED -> give_up(); goto rest /* also turns away what the server has not begun */
		:: !(token == mine && lock == 0) -> goto rest /* unverified, or another has the key */
		:: token == mine && lock == 0 && state == FAILED -> goto rest
		fi
	}
keep: /* a response that commits nothing, in a transaction of its own */
	atomic {
		if
		:: FAULT; goto rest
		:: OWNED(mine) && lock == 0 -> state = COMPLETED; response = mine; answer(mine)
		:: OWNED(mine) && lock == 0 && faults > 0 -> faults--; state = COMPLETED; response = mine /* that is not heard of */
		:: !(OWNED(mine) && lock == 0) -> skip
		fi;
		goto rest
	}
}

/* The server comes to what was sent before its client was lost; or it notices first, and rolls back. */
active proctype server() {
	byte r;
end:
	do
	:: atomic {
		if
		:: late[1] && (lock == 0 || lock == 1) -> r = 1
		:: late[2] && (lock == 0 || lock == 2) -> r = 2
#if REQUESTS > 2
		:: late[3] && (lock == 0 || lock == 3) -> r = 3
#endif
#if REQUESTS > 3
		:: late[4] && (lock == 0 || lock == 4) -> r = 4
#endif
		fi;
		late[r] = false;
		if
		:: commit(r, begun[r])
		:: begun[r] -> begun[r] = false; lock = 0
		:: !begun[r]
		fi;
		begun[r] = false; r = 0
	}
	od
}

active proctype watch() {
	atomic {
		timeout;
		MUST(record_tells, lock == 0 && (orders == 0 || state == COMPLETED) && (told == 0 || state == COMPLETED));
		over = true
	}
}
