package outbox

import "time"

// limits of a relay, which tests make small.
type limits struct {
	list    int           // messages of a difference that are listed at once
	page    int           // messages that are read at once
	cursors int64         // checkpoints after which the two tables of cursors take turns
	held    time.Duration // how often due messages are looked for
	rotate  time.Duration // how often the leaves are looked at
	stall   time.Duration // how long a full window may make no progress
	resume  int           // messages of a topic that are made due at once when it is resumed
	promote time.Duration // how often waiting messages are looked for whose first is gone
	first   int           // ordering keys of which the first message is looked at in one step of that
	keys    int           // blocked keys at which a lane forgets some
}

var defaultLimits = limits{
	list: maxList, page: maxPage, cursors: cursorRows,
	held: heldInterval, rotate: rotateInterval, stall: stallTimeout, resume: resumeRows, promote: promoteInterval, first: promoteKeys, keys: blockedKeys,
}

// promoteInterval is how long messages may wait behind one that an operator has
// removed by hand, and the time in which all keys that are held are looked at: 2000 a second.
const promoteInterval = time.Minute
