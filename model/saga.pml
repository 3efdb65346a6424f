/* An orchestrated saga of three steps: the instance's row, moved by replies and by timers that race them, and the
 * participants' inboxes, reached by messages that come in any order and more than once.
 *
 * Plans: 1, 2, 3 one after the other; with PARALLEL, 1 and then 2 and 3 beside each other; with PIVOT, 2 is the pivot, and
 * 3 only goes forward. It follows internal/machine (event.go, next.go, reply.go, verbs.go), saga/reply.go and saga/timer.go. That
 * a message is handled once, and what it sends is sent, is what consumer.pml and relay.pml show: here each is one atomic
 * step. What is stuck goes on when a person redrives the dead letter. Not in here: nested sagas, local and conditional
 * steps, patience, and of the verbs all but cancel.
 */
#include "check.pml"

#ifndef FAULTS
#define FAULTS 2
#endif

mtype:state = { IDLE, IN_FLIGHT, WAITING, DONE, REJECTED, UNKNOWN, STUCK, UNDOING, UNDO_STUCK, UNDONE };
mtype:phase = { RUNNING, COMPENSATING, COMPLETED, COMPENSATED };
mtype:cell = { C_ABSENT, C_DONE, C_REFUSED, C_DEAD, C_VOID, C_UNDO_DEAD, C_COMPENSATED };

#define STEPS 3
#ifdef PIVOT
#define PIVOT_AT 2
#define TRIES(s) (s == 3 -> 2 : 1)     /* attempts at it */
#define UNDOABLE(s) (s == 1)
#else
#define PIVOT_AT 0
#ifdef PARALLEL
#define TRIES(s) 1
#else
#define TRIES(s) (s == 2 -> 2 : 1)
#endif
#define UNDOABLE(s) true
#endif
#define BEHIND(s) (PIVOT_AT != 0 && s > PIVOT_AT)
#define IDENTITY(s, a) (2 * (s) + (a) - 3)  /* of an attempt at a step, the key of its row in the inbox */

/* The instance. */
mtype:phase phase = RUNNING;
mtype:state st[STEPS + 1] = IDLE;
byte attempt[STEPS + 1];
bool due[STEPS + 1];     /* a time is set: its deadline, or the end of its wait */
bool doubt[STEPS + 1];   /* of one that is stuck: it may have been done */
bool kicked;             /* a person has moved it, and what follows is to be done */
bool aged;               /* the saga's own deadline has passed */
bool cancelled;

/* The participants, and what is on its way to and from them. */
mtype:cell cell[6] = C_ABSENT;
bool act[6], undo[6];    /* a command was published */
bool acted[6], undid[6]; /* it was delivered */
byte answers[6];         /* a set of replies that are not taken yet */
#define R_DONE 1
#define R_REFUSED 2
#define R_FAILED 4
#define R_UNDONE 8
#define R_UNDO_FAILED 16
bool act_dead[6], undo_dead[6]; /* dead letters */
bool effect[6], undone[6];

/* Timers that have claimed the instance. */
#define me (_pid - 1)
#define LEASED_TO_OTHER (claimed[1 - me] && !moved[1 - me])
bool claimed[2], moved[2];
byte overdue[2];         /* for a timer that does not look again */

byte reply_won, deadline_won; /* sets of steps: what moved the saga on, or back */

byte faults = FAULTS;

bool once = true;              /* G3: an attempt's action commits at most once, and its compensation */
bool never_after_undo = true;  /* G3: and never the action after it */
bool reverse_order = true;     /* G3: what is done is undone in reverse order */
bool pivot_holds = true;       /* G3: none is undone once the pivot has been sent, unless it is rejected */
bool deadline_or_reply = true; /* G3: one of them decides about a step, never both */
bool all_or_nothing = true;    /* G3: of a saga that has ended all steps are in force, or none */
bool ended = true;             /* G4, G7: it ends, completed or compensated; or a person is asked, behind the pivot */

#define BIT(s) (1 << (s))
#define COMMITTED (PIVOT_AT != 0 && st[2] != IDLE && st[2] != WAITING && st[2] != REJECTED && !(st[2] == STUCK && !doubt[2]))
#ifdef BUG_PIVOT_COMPENSATED
#define REVOCABLE (phase == RUNNING)
#else
#define REVOCABLE (phase == RUNNING && !COMMITTED)
#endif
#define AWAITS (phase == COMPENSATING && ((st[1] == IN_FLIGHT && UNDOABLE(1)) || (st[2] == IN_FLIGHT && UNDOABLE(2)) || (st[3] == IN_FLIGHT && UNDOABLE(3))))
#define HAS_ENDED (phase == COMPLETED || phase == COMPENSATED)

/* What the processes below have in hand: a step, an attempt at it, its identity, and a reply. They are zero in between. */
#define HAND byte s, a, i, kind, n; bool turns, give_up
#define DROP s = 0; a = 0; i = 0; kind = 0; turns = false; give_up = false

/* compensate turns round. Nobody waits any more for what is in flight if the saga gives up. */
inline compensate() {
	if :: phase == RUNNING -> phase = COMPENSATING :: else fi;
	n = 1;
	do
	:: n > STEPS -> break
	:: else ->
		if
		:: st[n] == WAITING || (st[n] == STUCK && !doubt[n]) -> st[n] = REJECTED; due[n] = false
		:: (st[n] == STUCK && doubt[n]) || (st[n] == IN_FLIGHT && give_up) -> st[n] = UNKNOWN; due[n] = false; doubt[n] = false
		:: else
		fi;
		n++
	od;
	n = 0
}

/* Nothing of s is left to undo. */
#ifdef BUG_FLIGHT_NOT_AWAITED
#define FINISHED(s) (st[s] != UNDOING && st[s] != UNDO_STUCK && !((st[s] == DONE || st[s] == UNKNOWN) && UNDOABLE(s)))
#else
#define FINISHED(s) (st[s] != UNDOING && st[s] != UNDO_STUCK && !((st[s] == DONE || st[s] == UNKNOWN || st[s] == IN_FLIGHT) && UNDOABLE(s)))
#endif

/* Whose turn it is: after which steps forward, and after which back. */
#ifdef PARALLEL
#define FORWARD(s) (s == 1 || st[1] == DONE)
#define BACKWARD(s) (s != 1 || (FINISHED(2) && FINISHED(3)))
#else
#define FORWARD(s) (s == 1 || (st[1] == DONE && (s == 2 || st[2] == DONE)))
#define BACKWARD(s) (s == 3 || (FINISHED(3) && (s == 2 || FINISHED(2))))
#endif
#ifdef BUG_FORWARD_COMPENSATION
#undef BACKWARD
#define BACKWARD(s) (s == 1 || (FINISHED(1) && (s == 2 || FINISHED(2))))
#endif

/* advance does what follows, until there is nothing left to do: forward in order, and back in the reverse one. */
inline advance() {
	n = (phase == RUNNING -> 1 : STEPS);
	do
	:: n == 0 || n > STEPS -> break
	:: else ->
		if
		:: phase == RUNNING && FORWARD(n) && (st[n] == IDLE || (st[n] == WAITING && !due[n])) ->
			st[n] = IN_FLIGHT; due[n] = true;
#ifdef BUG_ATTEMPT_REUSED
			attempt[n] = 1; acted[IDENTITY(n, 1)] = false;
#else
			attempt[n]++;
#endif
			act[IDENTITY(n, attempt[n])] = true
		:: phase == COMPENSATING && BACKWARD(n) && (st[n] == DONE || st[n] == UNKNOWN) && UNDOABLE(n) ->
			MUST(pivot_holds, !COMMITTED);
			st[n] = UNDOING;
			undo[IDENTITY(n, attempt[n])] = true
		:: else
		fi;
		if :: phase == RUNNING -> n++ :: else -> n-- fi
	od;
	n = 0;
	if
	:: phase == RUNNING && st[1] == DONE && st[2] == DONE && st[3] == DONE -> phase = COMPLETED
	:: phase == COMPENSATING && FINISHED(1) && FINISHED(2) && FINISHED(3) -> phase = COMPENSATED
	:: else
	fi;
	kicked = false;
	moved[0] = true; moved[1] = true
}

/* in_doubt: it is not known what came of s, and the saga cannot turn round for it. */
inline in_doubt() {
	if
	:: phase == COMPENSATING -> st[s] = UNKNOWN; doubt[s] = false
	:: else -> st[s] = STUCK; doubt[s] = true
	fi
}

inline refused() {
	doubt[s] = false;
	if
	:: phase == COMPENSATING -> st[s] = REJECTED
	:: phase != COMPENSATING && attempt[s] < TRIES(s) -> st[s] = WAITING; due[s] = true
	:: phase != COMPENSATING && attempt[s] >= TRIES(s) && BEHIND(s) -> st[s] = STUCK
	:: phase != COMPENSATING && attempt[s] >= TRIES(s) && !BEHIND(s) -> st[s] = REJECTED; turns = true
	fi
}

inline failed() {
	if
	:: st[s] == UNKNOWN
	:: st[s] != UNKNOWN && (BEHIND(s) || s == PIVOT_AT || st[s] == STUCK) -> in_doubt()
	:: st[s] == IN_FLIGHT && !BEHIND(s) && s != PIVOT_AT -> st[s] = UNKNOWN; turns = true
	fi
}

#ifdef BUG_STUCK_IS_DEAF
#define AWAITED (st[s] == IN_FLIGHT || st[s] == UNKNOWN)
#else
#define AWAITED (st[s] == IN_FLIGHT || st[s] == UNKNOWN || (st[s] == STUCK && doubt[s]))
#endif

/* take has the instance take a reply; one that nobody waits for changes nothing. */
inline take() {
	if
	:: !HAS_ENDED && attempt[s] == a && kind < R_UNDONE && AWAITED ->
		due[s] = false;
		if
		:: kind == R_DONE ->
			if
			:: phase == RUNNING && st[s] == IN_FLIGHT ->
				reply_won = reply_won | BIT(s);
				MUST(deadline_or_reply, (deadline_won & BIT(s)) == 0)
			:: else
			fi;
			st[s] = DONE; doubt[s] = false
		:: kind == R_REFUSED -> refused()
		:: kind == R_FAILED -> failed()
		fi;
		if :: turns -> compensate() :: else fi;
		advance()
	:: !HAS_ENDED && attempt[s] == a && kind >= R_UNDONE && (st[s] == UNDOING || st[s] == UNDO_STUCK) ->
		st[s] = (kind == R_UNDONE -> UNDONE : UNDO_STUCK);
		advance()
	:: else
	fi
}

/* The consumer of replies: any number of orchestrators, which take turns at the row's lock. */
active proctype orchestrator() {
	HAND;

	atomic { advance() } /* Start */
end:
	do
	:: atomic {
		if
		:: answers[0] != 0 -> i = 0
		:: answers[1] != 0 -> i = 1
		:: answers[2] != 0 -> i = 2
		:: answers[3] != 0 -> i = 3
		:: answers[4] != 0 -> i = 4
		:: answers[5] != 0 -> i = 5
		fi;
		if
		:: (answers[i] & R_DONE) != 0 -> kind = R_DONE
		:: (answers[i] & R_REFUSED) != 0 -> kind = R_REFUSED
		:: (answers[i] & R_FAILED) != 0 -> kind = R_FAILED
		:: (answers[i] & R_UNDONE) != 0 -> kind = R_UNDONE
		:: (answers[i] & R_UNDO_FAILED) != 0 -> kind = R_UNDO_FAILED
		fi;
		s = i / 2 + 1; a = i % 2 + 1;
		answers[i] = answers[i] & ~kind;
		take();
		DROP
	}
	:: atomic { /* a person cancels: nobody waits any more for what is in flight */
		!cancelled && (REVOCABLE || AWAITS) ->
		cancelled = true;
		give_up = true;
		compensate();
		kicked = true;
		moved[0] = true; moved[1] = true;
		DROP
	}
	od
}

#define DUE (!HAS_ENDED && (kicked || due[1] || due[2] || due[3]))

/* pass: the time of s has come. */
inline pass() {
	due[s] = false;
	if
	:: st[s] == IN_FLIGHT && (s == PIVOT_AT || BEHIND(s)) -> in_doubt()
#ifdef BUG_TIMER_UNCONDITIONAL
	:: s != PIVOT_AT && !BEHIND(s) ->
#else
	:: st[s] == IN_FLIGHT && s != PIVOT_AT && !BEHIND(s) ->
#endif
		deadline_won = deadline_won | BIT(s);
		MUST(deadline_or_reply, (reply_won & BIT(s)) == 0);
#ifdef BUG_DEADLINE_IS_REJECTION
		st[s] = REJECTED;
#else
		st[s] = UNKNOWN;
#endif
		turns = true
	:: else
	fi
}

/* A timer claims the instance in a commit of its own, and then moves it, unless it has moved since. */
active [2] proctype timer() {
	HAND;

end:
	do
	:: atomic {
		!claimed[me] && DUE && (faults > 0 || !LEASED_TO_OTHER) ->
		if :: LEASED_TO_OTHER -> faults-- /* who hangs */ :: else fi;
		claimed[me] = true; moved[me] = false;
#ifdef BUG_TIMER_UNCONDITIONAL
		overdue[me] = (due[3] -> 3 : (due[2] -> 2 : 1))
#endif
	}
	:: atomic {
		claimed[me] -> claimed[me] = false;
		if
#ifdef BUG_TIMER_UNCONDITIONAL
		:: s = overdue[me]; pass()
#else
		:: !moved[me] ->
			if
			:: kicked
			:: due[1] -> s = 1; pass()
			:: due[2] -> s = 2; pass()
			:: due[3] -> s = 3; pass()
			:: !aged && (AWAITS || REVOCABLE) -> aged = true; turns = true; give_up = true
			fi
		:: moved[me] -> goto out
#endif
		fi;
		if :: turns -> compensate() :: else fi;
		advance();
	out:	DROP
	}
	:: atomic { claimed[me] && faults > 0 -> faults--; claimed[me] = false } /* it dies, and another one tries */
	od
}

inline do_it() {
	MUST(once, !effect[i]);
	effect[i] = true; cell[i] = C_DONE;
	answers[i] = answers[i] | R_DONE
}

#define IN_FORCE(s) ((effect[IDENTITY(s, 1)] && !undone[IDENTITY(s, 1)]) || (effect[IDENTITY(s, 2)] && !undone[IDENTITY(s, 2)]))
#ifdef PARALLEL
#define LATER_IN_FORCE(i) (i < 2 && (IN_FORCE(2) || IN_FORCE(3)))
#else
#define LATER_IN_FORCE(i) ((i < 2 && IN_FORCE(2)) || (i < 4 && IN_FORCE(3)))
#endif

inline undo_it() {
	MUST(once, effect[i] && !undone[i]);
	MUST(reverse_order, !LATER_IN_FORCE(i));
	undone[i] = true; cell[i] = C_COMPENSATED;
	answers[i] = answers[i] | R_UNDONE
}

/* An action arrives. */
inline arrive() {
	acted[i] = true;
	if
#ifdef BUG_TOMBSTONE_MISSING
	:: cell[i] == C_VOID ->
		MUST(never_after_undo, false);
		do_it()
#endif
	:: cell[i] == C_ABSENT ->
		if
		:: do_it()
		:: cell[i] = C_REFUSED; answers[i] = answers[i] | R_REFUSED
		:: FAULT; cell[i] = C_DEAD; act_dead[i] = true; answers[i] = answers[i] | R_FAILED
		fi
	:: else /* a duplicate, or superseded */
	fi
}

/* A compensation arrives. */
inline arrive_undo() {
	undid[i] = true;
	if
	:: cell[i] == C_DONE ->
		if
		:: undo_it()
		:: FAULT; cell[i] = C_UNDO_DEAD; undo_dead[i] = true; answers[i] = answers[i] | R_UNDO_FAILED
		fi
	:: cell[i] == C_ABSENT || cell[i] == C_REFUSED ->
		cell[i] = C_VOID;
#ifndef BUG_TOMBSTONE_UNANSWERED
		answers[i] = answers[i] | R_UNDONE
#endif
#ifdef BUG_DOUBLE_COMPENSATION
	:: cell[i] == C_COMPENSATED -> undo_it()
#endif
	:: cell[i] == C_DEAD -> undo_dead[i] = true; answers[i] = answers[i] | R_UNDO_FAILED /* whether there is anything to undo is not known */
	:: cell[i] == C_DEAD -> cell[i] = C_VOID; answers[i] = answers[i] | R_UNDONE         /* with CancelParked it is */
	:: else
	fi
}

/* A person redrives a dead letter. */
inline redrive() {
	act_dead[i] = false;
	if
	:: cell[i] == C_DEAD -> do_it()
	:: cell[i] == C_DEAD -> cell[i] = C_REFUSED; answers[i] = answers[i] | R_REFUSED
	:: cell[i] != C_DEAD
	fi
}

inline redrive_undo() {
	undo_dead[i] = false;
	if
	:: cell[i] == C_DONE || cell[i] == C_UNDO_DEAD -> undo_it()
	:: cell[i] == C_REFUSED -> cell[i] = C_VOID; answers[i] = answers[i] | R_UNDONE
	:: else
	fi
}

#define OWED(i) (act[i] && (!acted[i] || faults > 0))
#define OWED_UNDO(i) (undo[i] && (!undid[i] || faults > 0))
#define DEAD(i) (act_dead[i] || (undo_dead[i] && cell[i] != C_DEAD))
#define BUSY(i) (OWED(i) || OWED_UNDO(i) || DEAD(i))

active proctype participants() {
	byte i;

end:
	do
	:: atomic {
		if
		:: BUSY(0) -> i = 0
		:: BUSY(1) -> i = 1
		:: BUSY(2) -> i = 2
		:: BUSY(3) -> i = 3
		:: BUSY(4) -> i = 4
		:: BUSY(5) -> i = 5
		fi;
		if
		:: OWED(i) -> if :: acted[i] -> faults-- /* once more */ :: else fi; arrive()
		:: OWED_UNDO(i) -> if :: undid[i] -> faults-- :: else fi; arrive_undo()
		:: act_dead[i] -> redrive()
		:: undo_dead[i] && cell[i] != C_DEAD -> redrive_undo()
		fi;
		i = 0
	}
	od
}

/* A step behind the pivot was rejected as often as it may be: a person has it tried again, or skips it. */
#define FOR_A_PERSON (BEHIND(3) && st[3] == STUCK && !doubt[3])

active proctype watch() {
	atomic {
		timeout;
		MUST(ended, HAS_ENDED || FOR_A_PERSON);
		MUST(all_or_nothing, (phase != COMPLETED || (IN_FORCE(1) && IN_FORCE(2) && IN_FORCE(3)))
			&& (phase != COMPENSATED || (!IN_FORCE(1) && !IN_FORCE(2) && !IN_FORCE(3))));
		over = true
	}
}
