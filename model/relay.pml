/* The outbox as an append-only log, and two relays that may die, hang and wake up again, or lose the answer to a
 * COMMIT, in front of a broker that refuses messages or does not answer.
 *
 * Three transactions write a message each. 1 and 3 have the same ordering key and serialise; 2 has drawn its id before
 * 3 and may commit after it. It follows outbox/lead.go, lead_lease.go, read.go, read_held.go, lane.go, settle.go and
 * settle_space.go. A snapshot is the set of transactions that are over. A relay that hangs beyond its lease is taken to go on with
 * whatever it has begun: nothing here rests on its own clock. Not in here: delayed messages, several lanes, what
 * a message that is never answered costs.
 */
#include "check.pml"

#ifndef FAULTS
#define FAULTS 2
#endif
#define MAX_ATTEMPTS 2

#define LAST 3
#define BIT(m) (1 << m)
#define ALL (BIT(1) | BIT(2) | BIT(3))
#define UPTO(m) ((2 << m) - 1)
#define KEY(m) (m == 2 -> 1 : 0)
#define HAS(set, m) ((set & BIT(m)) != 0)
#define NOWHERE 1        /* no snapshot: bit 0 is nobody's */

mtype:outcome = { UNDECIDED, PUBLISHED, REFUSED, QUEUED, SKIPPED };
mtype:holding = { FREE, HELD, WAITS, DEAD };

/* The database. A cursor is (from, to, last): all of the snapshot from is dealt with, and of to the ids up to last. */
byte begun, committed;          /* sets of messages */
byte ended;                     /* set of transactions that are over: a snapshot */
byte epoch;                     /* of who is active */
byte tenure;                    /* the same, in a table that a crash of the server empties */
bool leased;                    /* the lease runs */
byte noted, noted_from, noted_to = NOWHERE, noted_last;  /* the newest checkpoint, and its epoch */
mtype:holding held[LAST + 1] = FREE;
byte refusals[LAST + 1];
bool inserting[2];              /* a relay's statement has seen that it is active, and is about to insert a checkpoint */
#define checked inserting[_pid - 1]
bool emptied;                   /* the leaf with messages 1 and 2 */

#ifdef SERVER_CRASH
/* What has reached the disk. Commits wait for that, but those of checkpoints do not. */
byte disk_noted, disk_from, disk_to = NOWHERE, disk_last, disk_begun;
bool reused;                    /* 3 has the transaction id that 2 had, which nobody on the disk had heard of */
#endif

/* The broker. */
byte delivered, confirmed;      /* sets of messages */

byte faults = FAULTS;

bool confirmed_first = true;    /* G2: it counts as published only when the broker has confirmed it and not returned it */
bool nothing_lost = true;       /* G2: what has committed is published, or a dead letter for a person */
bool committed_only = true;     /* G2: what has rolled back is never published */
bool cursor_forward = true;     /* G2: what is noted as published is not published again */
bool ordered = true;            /* G5: messages of a key are first published in the order of their commits; the dead hold up nobody */

#ifdef SERVER_CRASH
#define VISIBLE(snapshot) (reused -> (snapshot & BIT(1)) | (HAS(snapshot, 2) -> BIT(3) : 0) : snapshot)
#define XID(m) (reused && m == 3 -> 2 : m)
#else
#define VISIBLE(snapshot) (snapshot)
#define XID(m) m
#endif

#define LOG (committed & (emptied -> BIT(3) : ALL))
#define COVERED(f, t, l) (VISIBLE(f) | (VISIBLE(t) & UPTO(l)))

/* The first message of m's key that is held and not dead; LAST + 1: none. */
#define LIVES(m) (held[m] == HELD || held[m] == WAITS)
#define HEAD(k) (k == 1 -> (LIVES(2) -> 2 : LAST + 1) : (LIVES(1) -> 1 : (LIVES(3) -> 3 : LAST + 1)))

/* write_cursor appends a checkpoint. One of an older epoch is not read again. */
inline write_cursor(e, f, t, l) {
	if
#ifdef BUG_STALE_CURSOR_WINS
	:: true ->
#else
	:: e >= noted ->
#endif
		MUST(cursor_forward, ((COVERED(noted_from, noted_to, noted_last) & committed) & ~COVERED(f, t, l)) == 0);
		noted = e; noted_from = f; noted_to = t; noted_last = l;
		MUST(confirmed_first, (!HAS(COVERED(f, t, l) & committed, 1) || HAS(confirmed, 1) || held[1] != FREE)
			&& (!HAS(COVERED(f, t, l) & committed, 2) || HAS(confirmed, 2) || held[2] != FREE)
			&& (!HAS(COVERED(f, t, l) & committed, 3) || HAS(confirmed, 3) || held[3] != FREE))
	:: else
	fi
}

inline deliver(m) {
	MUST(committed_only, HAS(committed, m));
	MUST(ordered, m != 3 || HAS(delivered, 3) || HAS(delivered, 1) || held[1] == DEAD);
	delivered = delivered | BIT(m)
}

/* flush: a commit waits until it is on the disk, and all that was written before with it. */
inline flush() {
#ifdef SERVER_CRASH
	disk_noted = noted; disk_from = noted_from; disk_to = noted_to; disk_last = noted_last; disk_begun = begun
#else
	skip
#endif
}

#ifdef SERVER_CRASH
#define REUSED reused
#else
#define REUSED false
#endif
#define OPEN(m) (HAS(begun, m) && !HAS(ended, XID(m)))

active proctype writers() {
end:
	do /* ids are drawn in their order */
	:: atomic { !HAS(begun, 1) -> begun = BIT(1) }
	:: atomic { begun == BIT(1) -> begun = begun | BIT(2) }
	:: atomic { HAS(begun, 2) && !HAS(begun, 3) && HAS(ended, 1) -> begun = begun | BIT(3) }
	:: atomic { OPEN(1) -> ended = ended | BIT(1); committed = committed | BIT(1); flush() }
	:: atomic { OPEN(2) && !REUSED -> ended = ended | BIT(2); if :: committed = committed | BIT(2); flush() :: skip fi }
	:: atomic { OPEN(3) -> ended = ended | BIT(XID(3)); committed = committed | BIT(3); flush() }
#ifdef SERVER_CRASH
	:: atomic { disk_noted != noted || disk_from != noted_from || disk_to != noted_to || disk_last != noted_last || disk_begun != begun -> flush() }
	:: atomic { /* the server comes back with what was on the disk, and may give ids of transactions out again */
		HAS(ended, 1) && HAS(begun, 2) && !HAS(begun, 3) && faults > 0 -> faults--;
#ifndef BUG_TENURE_SURVIVES_CRASH
		tenure = 0;
#endif
		inserting[0] = false; inserting[1] = false;
		noted = disk_noted; noted_from = disk_from; noted_to = disk_to; noted_last = disk_last;
		if
		:: HAS(disk_begun, 2) -> ended = ended | BIT(2)
		:: !HAS(disk_begun, 2) -> ended = ended & ~BIT(2); reused = true
		fi
	}
#endif
	od
}

/* What the log still has for a relay that has read up to from, to and last. */
#define SNAPSHOT (to == NOWHERE -> ended : to)
#ifdef BUG_BARE_ID_CURSOR
#define UNREAD (LOG & ~UPTO(last))
#elif defined(BUG_UNCOMMITTED_READ)
#define UNREAD (begun & (emptied -> BIT(3) : ALL) & ~VISIBLE(from) & ~(to == NOWHERE -> 0 : UPTO(last)))
#else
#define UNREAD (LOG & VISIBLE(SNAPSHOT) & ~VISIBLE(from) & ~(to == NOWHERE -> 0 : UPTO(last)))
#endif

#define FRONT page[0]
#define PENDING(m) ((HAS(page[0], m) || HAS(page[1], m)) && o[m] == UNDECIDED)
#define SLOT(m) (HAS(page[0], m) -> 0 : 1)
#define DECIDED(s) ((!HAS(page[s], 1) || o[1] != UNDECIDED) && (!HAS(page[s], 2) || o[2] != UNDECIDED) && (!HAS(page[s], 3) || o[3] != UNDECIDED))
#define PLAIN(s) (!retry[s] && (!HAS(page[s], 1) || o[1] == PUBLISHED) && (!HAS(page[s], 2) || o[2] == PUBLISHED) && (!HAS(page[s], 3) || o[3] == PUBLISHED))

/* Of a key one message is in flight: m's turn comes when what is ahead of it is decided. */
#ifdef BUG_TWO_IN_FLIGHT
#define TURN(m) PENDING(m)
#else
#define TURN(m) (PENDING(m) && (m != 3 || !PENDING(1) || SLOT(1) > SLOT(3)) && (m != 1 || !PENDING(3) || SLOT(3) >= SLOT(1)))
#endif

/* next decides what is not to be sent, and sends the rest. */
inline next() {
	s = SLOT(m);
	if
	:: blocked[KEY(m)] != 0 && !retry[s] -> o[m] = QUEUED; through[KEY(m)] = s + 1
	:: blocked[KEY(m)] != 0 && retry[s] && blocked[KEY(m)] < m && through[KEY(m)] == s + 1 -> o[m] = SKIPPED
	:: else ->
		if
		:: true -> deliver(m); confirmed = confirmed | BIT(m); o[m] = PUBLISHED
		:: FAULT; /* the broker refuses it, or returns it */
#ifdef BUG_RETURNED_COUNTS
			o[m] = PUBLISHED
#else
			o[m] = REFUSED; blocked[KEY(m)] = m; through[KEY(m)] = s + 1
#endif
		:: FAULT; /* it does not answer */
			if :: deliver(m) :: skip fi;
			if
			:: retry[s] -> o[m] = SKIPPED; blocked[KEY(m)] = m; through[KEY(m)] = s + 1
			:: else
			fi
		fi
	fi;
	s = 0
}

/* hold notes what became of the messages of the page in front. */
inline hold() {
	m = 1;
	do
	:: m > LAST -> break
	:: else ->
		if
		:: HAS(FRONT, m) && !retry[0] && held[m] == FREE && o[m] == QUEUED -> held[m] = WAITS
		:: HAS(FRONT, m) && !retry[0] && held[m] == FREE && o[m] == REFUSED -> held[m] = HELD; refusals[m] = 1
		:: HAS(FRONT, m) && retry[0] && o[m] == PUBLISHED -> held[m] = FREE
		:: HAS(FRONT, m) && retry[0] && o[m] == REFUSED && held[m] != DEAD && refusals[m] == seen[m] ->
			refusals[m]++;
			held[m] = (refusals[m] >= MAX_ATTEMPTS -> DEAD : HELD)
		:: else
		fi;
		m++
	od;
	m = 0
}

/* free lets a key pass again in which nothing is held, unless something was queued or refused since. */
inline free(k) {
	if
	:: blocked[k] != 0 && HEAD(k) > LAST && through[k] <= 1 -> blocked[k] = 0
	:: else
	fi;
	if :: through[k] > 0 -> through[k]-- :: else fi
}

/* settled takes the page in front away. */
inline settled() {
	m = 1;
	do
	:: m > LAST -> break
	:: else ->
		if :: HAS(FRONT, m) -> o[m] = UNDECIDED; seen[m] = 0 :: else fi;
		m++
	od;
	m = 0;
	if :: !retry[0] -> done_from = after_from[0]; done_to = after_to[0]; done_last = after_last[0] :: else fi;
	free(0); free(1);
	page[0] = page[1]; retry[0] = retry[1]; after_from[0] = after_from[1]; after_to[0] = after_to[1]; after_last[0] = after_last[1];
	page[1] = 0; retry[1] = false; after_from[1] = 0; after_to[1] = 0; after_last[1] = 0
}

inline resign() {
	if :: leads && epoch == mine -> leased = false :: else fi;
	leads = false; checked = false; mine = 0;
	page[0] = 0; page[1] = 0; retry[0] = false; retry[1] = false;
	after_from[0] = 0; after_to[0] = 0; after_last[0] = 0; after_from[1] = 0; after_to[1] = 0; after_last[1] = 0;
	from = 0; to = NOWHERE; last = 0; done_from = 0; done_to = NOWHERE; done_last = 0;
	o[1] = UNDECIDED; o[2] = UNDECIDED; o[3] = UNDECIDED; seen[1] = 0; seen[2] = 0; seen[3] = 0;
	blocked[0] = 0; blocked[1] = 0; through[0] = 0; through[1] = 0
}

#ifdef BUG_STALE_LEASE_ACCEPTED
#define TENURE true
#define SEEN true
#else
#define TENURE (tenure == mine)
#define SEEN (epoch == mine && TENURE) /* the statement finds the relay's epoch */
#endif

#ifdef BUG_LEAF_EMPTIED_UNREAD
#define DEALT_WITH COVERED(from, to, last)
#else
#define DEALT_WITH COVERED(done_from, done_to, done_last)
#endif

#define RETRY_DUE(k) (leads && page[1] == 0 && !retry[0] && HEAD(k) <= LAST && !HAS(page[0], HEAD(k)) && !(k == 0 && HAS(page[0], 3) && held[3] == WAITS))

inline exceptions() {
#ifdef BUG_HELD_AFTER_CURSOR
	if :: !retry[0] -> write_cursor(mine, after_from[0], after_to[0], after_last[0]) :: else fi;
#endif
	hold();
#ifndef BUG_HELD_AFTER_CURSOR
	if :: !retry[0] -> write_cursor(mine, after_from[0], after_to[0], after_last[0]) :: else fi;
#endif
	flush()
}

/* dispatch puts a page behind those in flight. */
inline dispatch(set, held_) {
	s = (page[0] == 0 -> 0 : 1);
	page[s] = set; retry[s] = held_;
	if :: !held_ -> after_from[s] = from; after_to[s] = to; after_last[s] = last :: else fi;
	s = 0
}

active [2] proctype relay() {
	bool leads;
	byte mine;                                   /* epoch */
	byte from, to = NOWHERE, last;               /* where it reads */
	byte done_from, done_to = NOWHERE, done_last; /* up to where it has noted */
	byte page[2], after_from[2], after_to[2], after_last[2];
	bool retry[2];
	mtype:outcome o[LAST + 1] = UNDECIDED;
	byte seen[LAST + 1];
	byte blocked[2], through[2];
	byte m, s, set;

end:
	do
	:: atomic { /* take over: lease, epoch and the first checkpoint of the epoch in one commit */
		!leads && !leased ->
		leased = true; epoch++; tenure = epoch;
		from = noted_from; to = noted_to; last = noted_last;
		write_cursor(epoch, from, to, last);
		flush();
		if
		:: true ->
			leads = true; mine = epoch;
			done_from = from; done_to = to; done_last = last;
#ifndef BUG_BLOCKED_KEYS_FORGOTTEN
			blocked[0] = (HEAD(0) > LAST -> 0 : HEAD(0)); blocked[1] = (HEAD(1) > LAST -> 0 : HEAD(1))
#endif
		:: FAULT; leased = false; resign() /* that is not heard of, and the lease runs out */
		fi
	}
	:: atomic { /* read a page of the log */
		leads && page[1] == 0 && (UNREAD != 0 || !TENURE) ->
		if
		:: !TENURE -> resign()
		:: TENURE ->
			set = UNREAD;
			to = SNAPSHOT;
			if
			:: HAS(set, 1) -> set = BIT(1)
			:: HAS(set, 2) -> set = set & UPTO(2)
			:: true
			fi;
			last = (HAS(set, 3) -> 3 : (HAS(set, 2) -> 2 : 1));
#ifndef BUG_BARE_ID_CURSOR
			if
			:: (LOG & VISIBLE(to) & ~VISIBLE(from) & ~UPTO(last)) == 0 -> from = to; to = NOWHERE; last = 0
			:: else
			fi;
#endif
			dispatch(set, false);
			set = 0
		fi
	}
	:: atomic { /* read refused messages that are due, and what waits behind them */
		if
		:: RETRY_DUE(0) -> set = BIT(HEAD(0)) | (held[3] == WAITS -> BIT(3) : 0)
		:: RETRY_DUE(1) -> set = BIT(2)
		fi;
		seen[1] = refusals[1]; seen[2] = refusals[2]; seen[3] = refusals[3];
		dispatch(set, true);
		set = 0
	}
	:: atomic {
		if
		:: leads && TURN(1) -> m = 1
		:: leads && TURN(2) -> m = 2
		:: leads && TURN(3) -> m = 3
		fi;
		next(); m = 0
	}
	:: atomic { /* note a page without exceptions: the statement sees the epoch, and inserts later */
#ifdef BUG_MARK_BEFORE_CONFIRM
		leads && !checked && FRONT != 0 && (PLAIN(0) || !DECIDED(0)) ->
#else
		leads && !checked && FRONT != 0 && PLAIN(0) ->
#endif
		if
		:: SEEN -> checked = true
		:: !SEEN -> resign()
		fi
	}
	:: atomic {
		checked -> checked = false;
		if
		:: true -> write_cursor(mine, after_from[0], after_to[0], after_last[0]); settled()
		:: FAULT; write_cursor(mine, after_from[0], after_to[0], after_last[0]) /* that is not heard of */
		:: FAULT /* it has not happened */
		fi
	}
	:: atomic { /* note one with exceptions, under the lease's lock: what is passed over is held by then */
		leads && FRONT != 0 && DECIDED(0) && !PLAIN(0) ->
		if
		:: SEEN ->
			if
			:: true -> exceptions(); settled()
			:: FAULT; exceptions() /* that is not heard of */
			:: FAULT /* it has not happened */
			fi
		:: !SEEN -> resign()
		fi
	}
	:: atomic { /* empty a leaf: no writer is open that has written to it, and all in it is dealt with */
		leads && !emptied && HAS(ended, 1) && HAS(ended, 2) && !REUSED && (committed & UPTO(2) & ~DEALT_WITH) == 0 ->
		if
		:: SEEN -> emptied = true; flush()
		:: !SEEN -> resign()
		fi
	}
	:: atomic { leads && faults > 0 -> faults--; resign() } /* it dies */
	:: atomic { leads && leased && epoch == mine && faults > 0 -> faults--; leased = false } /* it hangs beyond its lease */
	od
}

active proctype watch() {
	atomic {
		timeout;
		MUST(nothing_lost, (committed & ~delivered & ~(held[1] == DEAD -> BIT(1) : 0) & ~(held[2] == DEAD -> BIT(2) : 0) & ~(held[3] == DEAD -> BIT(3) : 0)) == 0
			&& HEAD(0) > LAST && HEAD(1) > LAST);
		over = true
	}
}
