package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
)

// listTimeout bounds reading from the log. A read takes the longer the more there is to
// publish. The lease is renewed meanwhile.
const listTimeout = 10 * time.Minute

// A leader is one tenure of the active relay. In each round it takes messages from stage to
// stage: one goroutine reads pages, hands them to the lanes, and settles them in their order.
type leader struct {
	*core
	lease lease
	epoch int64
	wake  <-chan struct{} // after commits

	log     logReader
	held    heldReader
	window  window
	lanes   laneSet
	settler settler
	space   spaceKeeper
	prober  topicProber
	chores  []chore

	done   chan struct{} // a page may be decided, or the broker has answered a probe
	expiry *time.Timer   // ends the tenure with the lease

	expectsMessages   bool      // messages may have been committed since the log was read
	pollAt            time.Time // when the log is read although no messages are expected
	unexpectedReads   int       // reads in a row that found messages that were not expected
	silentWriterUntil time.Time // until then a writer is assumed that does not wake the relay
	pace              pace
	announce          func(payload string) // to the other processes
	emptyReads        int                  // reads in a row that found nothing
	failures          int                  // rounds in a row that failed
}

// newLeader returns the leader of tenure t. Its lanes do not wait for the broker any more once
// stop is closed.
func newLeader(r *Relay, t tenure, stop <-chan struct{}) *leader {
	s := &r.core
	l := &leader{
		core: s, lease: lease{s}, epoch: t.epoch, wake: r.wake, announce: r.notifier.announce, done: make(chan struct{}, 1), expectsMessages: true,
		log:     logReader{core: s, epoch: t.epoch, position: position{at: t.at}},
		window:  window{core: s, movedAt: time.Now()},
		settler: settler{core: s, epoch: t.epoch, at: t.at, which: t.which, turnAt: s.limits.cursors},
		space:   spaceKeeper{core: s, epoch: t.epoch, turnedAt: time.Now()},
		prober:  topicProber{core: s, epoch: t.epoch, resumeAll: true},
	}
	l.settler.window = &l.window
	l.held = heldReader{core: s, window: &l.window, log: &l.log}
	l.lanes.openLanes(s, stop, l.done)
	s.topics.setListener(l.lanes.pokeLanes)
	l.chores = []chore{
		{name: "resume topics", do: l.resumeTopics},
		{name: "promote waiting messages", do: l.held.promoteWaiting},
		{name: "read due messages", do: l.readHeld},
		{name: "move delayed messages", do: l.moveDelayed},
	}
	return l
}

// leadTenure publishes from t on until ctx ends, after which it finishes the messages in
// flight, or until the lease is lost.
func (r *Relay) leadTenure(ctx, work context.Context, t tenure) error {
	work, end := context.WithCancelCause(work)
	defer end(nil)
	r.topics.forgetProbes()
	l := newLeader(r, t, ctx.Done())
	l.log.own = r.openLogPool(ctx)
	defer l.log.closeOwn()
	l.expiry = time.AfterFunc(time.Until(t.until), func() { end(errExpired) }) // no publishing without a lease
	defer l.expiry.Stop()
	var workers sync.WaitGroup
	for _, lane := range l.lanes.all {
		workers.Go(func() { lane.publishItems(work) })
	}
	workers.Go(func() { l.keepLease(work, end) })
	l.prober.probing = &workers
	r.counters.leads.Store(true)
	r.notifier.hearBusy(false)                                       // the relay before may have said that it was busy
	err := guard.Call(func() error { return l.goRounds(ctx, work) }) // the state a panic leaves ends with the tenure
	r.counters.leads.Store(false)
	end(nil)
	workers.Wait()
	l.lease.releaseLease(ctx, t.epoch)
	return err
}

// keepLease renews the lease until ctx ends, and ends the tenure when another relay has taken
// over. It runs beside the rounds, which may take longer than the lease.
func (l *leader) keepLease(ctx context.Context, end context.CancelCauseFunc) {
	wait := l.opts.Lease / 3
	for {
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
		var until time.Time
		err := guard.Call(func() (err error) {
			until, err = l.lease.renewLease(ctx, l.epoch)
			return err
		})
		switch {
		case errors.Is(err, errOvertaken):
			end(errOvertaken)
			return
		case err != nil:
			wait = l.opts.Lease / looksPerLease
			if ctx.Err() == nil {
				l.opts.Logger.WarnContext(ctx, "outbox: the lease of the relay could not be renewed, trying again until it runs out", "schema", l.opts.Schema, "error", err)
			}
		default:
			l.expiry.Reset(time.Until(until))
			wait = l.opts.Lease / 3
		}
	}
}

// goRounds does round after round. It returns nil after ctx has ended. Once the lease is lost,
// its error tells how the tenure has ended.
func (l *leader) goRounds(ctx, work context.Context) error {
	for {
		stopping := ctx.Err() != nil
		n, err := l.doRound(work, stopping)
		switch {
		case errors.Is(err, errOvertaken):
			return err
		case work.Err() != nil:
			l.reportUnfinished(ctx, context.Cause(work))
			if stopping {
				return nil
			}
			return context.Cause(work)
		case err != nil:
			l.failures++
			l.opts.Logger.ErrorContext(ctx, "outbox: a pass of the relay failed, trying again", "schema", l.opts.Schema, "failures", l.failures, "error", err)
			l.signals.rested.Send(err)
		default:
			l.failures = 0
		}
		l.signals.passed.Send(n)
		if stopping && l.isFinished() {
			l.reportUnfinished(ctx, errNoConfirm)
			return nil
		}
		if stopping || ctx.Err() == nil {
			l.waitForWork(ctx, work, n)
		}
	}
}

// errNoConfirm is why messages stay in flight if the broker does not answer.
var errNoConfirm = errors.New("outbox: the broker has not confirmed them")

// leadUnfinished is what the log says of a tenure that ends before all that it has read is settled.
const leadUnfinished = "outbox: the lead ends before all messages that were read are settled; the next relay publishes them, some perhaps again"

// reportUnfinished logs if a tenure ends before all that it has read is settled.
func (l *leader) reportUnfinished(ctx context.Context, cause error) {
	if pages := len(l.window.pages); pages > 0 {
		l.opts.Logger.WarnContext(ctx, leadUnfinished, "schema", l.opts.Schema, "pages", pages, "error", cause)
	}
}

// isFinished reports whether everything in flight is settled, or will not be because the broker
// is away, and the checkpoint says so.
func (l *leader) isFinished() bool {
	if l.window.settled > 0 {
		return false
	}
	return len(l.window.pages) == 0 || l.lanes.gaveUp() && l.window.pages[0].left.Load() > 0
}

// doRound does everything that is due and does not wait for the broker. It returns how many
// messages were settled, moved or read.
func (l *leader) doRound(ctx context.Context, stopping bool) (n int, err error) {
	n, err = l.settlePages(ctx)
	if err == nil && (stopping || l.settler.isCheckpointOlderThan(checkpointDelay) || l.window.isFullWithSettled()) {
		err = l.settler.flushCheckpoint(ctx)
	}
	if err != nil || stopping {
		return n, err
	}
	l.topics.setPressure(l.window.currentPressure())
	l.prober.sendProbes(ctx, l.window.hasTopic, func() {
		select {
		case l.done <- struct{}{}:
		default:
		}
	})
	for i := range l.chores {
		more, err := l.tryChore(ctx, &l.chores[i])
		if n += more; err != nil {
			return n, err
		}
	}
	read, err := l.readLog(ctx)
	if n += read; err != nil {
		return n, err
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	if err := l.space.rotateLeaves(ctx, l.settler.at); err != nil && ctx.Err() == nil {
		l.opts.Logger.WarnContext(ctx, "outbox: the tables of the log could not be rotated, trying again later", "schema", l.opts.Schema, "error", err)
	}
	return n, nil
}

// settlePages settles the decided pages in front and drops them. After an error they are
// settled again.
func (l *leader) settlePages(ctx context.Context) (n int, err error) {
	pages := l.window.decidedPages()
	if len(pages) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	if err := failpoint.Hit("outbox/after-publish"); err != nil {
		return 0, err
	}
	noted, err := l.settler.notePages(ctx, pages)
	if err != nil {
		return 0, fmt.Errorf("outbox: settle: %w", err)
	}
	if noted.exceptional {
		l.freeKeys(noted.openKeys, noted.through)
	}
	for _, p := range pages {
		l.counters.countSettled(p)
		l.held.retrying = l.held.retrying && !p.held
	}
	l.lanes.settled.noteSettled(noted.through, l.window.seq)
	n = l.window.dropPages(len(pages))
	l.settler.turnCursors(ctx)
	return n, nil
}

// freeKeys lets messages pass again whose keys have nothing held once page through is settled.
// Messages that waited behind a held one may be due now.
func (l *leader) freeKeys(keys []string, through uint64) {
	l.lanes.freeKeys(keys, through)
	l.held.readRefusedSoon()
}

// A chore is a part of a round that deals with a bounded number of held messages. If it fails,
// it is left out for a while, and the round goes on. A failure costs the log only time.
type chore struct {
	name      string
	do        func(context.Context) (int, error)
	failures  int // in a row
	notBefore time.Time
}

// tryChore does c unless it has just failed. Its error is one that ends the tenure.
func (l *leader) tryChore(ctx context.Context, c *chore) (int, error) {
	if time.Now().Before(c.notBefore) {
		return 0, nil
	}
	n, err := c.do(ctx)
	switch {
	case err == nil:
		c.failures = 0
	case errors.Is(err, errOvertaken):
		return n, err
	case ctx.Err() == nil:
		c.failures++
		c.notBefore = time.Now().Add(failurePolicy.Wait(c.failures))
		l.opts.Logger.ErrorContext(ctx, "outbox: a step of the relay failed; it is tried again later, and new messages are published meanwhile",
			"schema", l.opts.Schema, "step", c.name, "failures", c.failures, "error", err)
		l.signals.rested.Send(err)
	}
	return n, nil
}

// resumeTopics ends the stall of a topic that a probe has reached.
func (l *leader) resumeTopics(ctx context.Context) (int, error) {
	found, err := l.prober.resumeNext(ctx)
	if found.probeSettled {
		l.freeKeys(found.openKeys, l.window.settledThrough())
	}
	if found.madeDue {
		l.held.readRefusedSoon()
	}
	return found.messages, err
}

// readHeld reads refused messages that are due and hands them to the lanes.
func (l *leader) readHeld(ctx context.Context) (int, error) {
	rows, err := l.held.readDue(ctx)
	if err == nil && len(rows) > 0 {
		l.lanes.dispatchPage(l.window.addPage(rows, cursor{}, true))
	}
	return len(rows), err
}

// moveDelayed moves delayed messages that are due into the log, which is then read at once. The log is also read at once
// after a move that failed: its COMMIT may have been executed.
func (l *leader) moveDelayed(ctx context.Context) (int, error) {
	failed := l.held.unmoved
	moved, err := l.held.moveDelayed(ctx)
	l.expectsMessages = l.expectsMessages || moved > 0 || l.held.unmoved > failed
	return moved, err
}

// readLog reads a page of the log and hands it to the lanes. It does so if messages are expected, and otherwise at
// pollAt. A checkpoint that is due is written in the same transaction.
func (l *leader) readLog(ctx context.Context) (int, error) {
	room, bytes := l.window.roomForLog()
	now := time.Now()
	if room <= 0 || now.Before(l.log.readAt) || !l.expectsMessages && !l.log.backlog && now.Before(l.pollAt) {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	batch := l.log.newReadBatch()
	confirm := l.settler.queueDueCheckpoint(batch)
	l.held.lookWanted = l.held.lookWanted || l.expectsMessages
	takeLook := l.held.queueLookForHeld(batch)
	rows, after, err := l.log.readPage(ctx, batch, room, bytes)
	if err != nil {
		return 0, fmt.Errorf("outbox: %w", err)
	}
	takeLook(now)
	goesOn := l.log.backlog
	l.log.backlog = len(rows) == room || !l.log.isCaughtUp()
	if payload := l.pace.noteRead(time.Now(), len(rows), l.counters.notified.Load()); payload != "" {
		l.announce(payload)
	}
	l.schedulePoll(len(rows), goesOn)
	l.expectsMessages = false
	if len(rows) > 1 && !l.log.backlog {
		// Several transactions are writing. A read after each commit would slow them down more
		// than a pause of PollMin delays their messages.
		l.log.readAt = time.Now().Add(l.opts.PollMin)
	}
	if len(rows) > 0 {
		l.lanes.dispatchPage(l.window.addPage(rows, after, false))
	}
	return len(rows), confirm()
}

// A silent writer commits messages without waking the relay. silentWriterPoll is the longest pause between two reads
// while one is assumed. silentWriterPatience is how long one is assumed after the last messages of one were found.
const (
	silentWriterPoll     = 250 * time.Millisecond
	silentWriterPatience = 5 * time.Minute
)

// schedulePoll sets pollAt after a read of n messages: after PollMax, if writers wake the relay. If the relay does not
// listen, or a silent writer is assumed, or other processes do not notify because this relay is busy, the pause starts at
// PollMin and grows with each empty read. A read that goes on with the pages of an earlier one is no sign of a silent
// writer.
func (l *leader) schedulePoll(n int, goesOn bool) {
	now := time.Now()
	l.emptyReads++
	if n > 0 {
		l.emptyReads = 0
		switch {
		case l.expectsMessages, l.pace.busy:
			l.unexpectedReads = 0
		case !goesOn:
			l.unexpectedReads++
		}
		if l.unexpectedReads > 1 { // the first may have found a message just before its wake-up arrived
			l.silentWriterUntil = now.Add(silentWriterPatience)
		}
	}
	pause := l.opts.PollMax
	if !l.listens.Load() || l.pace.busy || now.Before(l.silentWriterUntil) {
		pause = backoff.Policy{Base: l.opts.PollMin, Cap: min(l.opts.PollMax, silentWriterPoll)}.Ceiling(l.emptyReads)
	}
	l.pollAt = now.Add(pause)
	if l.held.lookWanted && l.held.nextLookAt.Before(l.pollAt) { // the commit may have brought a delayed message
		l.pollAt = l.held.nextLookAt
	}
}

// waitForWork waits until there may be something to do: a page is decided, messages were
// committed, or a read is due.
func (l *leader) waitForWork(ctx, work context.Context, n int) {
	wait, wake := l.nextPause(ctx, n)
	if at, stalled := l.topics.nextProbeTime(); stalled {
		wait = min(wait, max(time.Until(at), l.opts.PollMin))
	}
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	stop := ctx.Done()
	if ctx.Err() != nil {
		stop = nil
	}
	select {
	case <-timer.C:
	case <-wake:
		l.expectsMessages, l.emptyReads = true, 0
	case <-l.done:
	case <-stop:
	case <-work.Done():
	}
}

// nextPause returns how long to wait after a round that has moved n messages on. The channel
// ends the wait after a commit; nil: a commit does not.
func (l *leader) nextPause(ctx context.Context, n int) (time.Duration, <-chan struct{}) {
	linger := time.Until(l.log.readAt)
	switch {
	case l.failures > 0:
		return failurePolicy.Wait(l.failures), nil
	case l.window.isFull() || ctx.Err() != nil:
		return min(l.opts.PollMax, l.limits.stall), nil // for the broker
	case l.log.backlog:
		return 0, nil
	case linger > 0:
		return linger, nil
	}
	if n == 0 && l.window.messages == 0 {
		l.signals.rested.Send(nil)
	}
	pause := min(time.Until(l.pollAt), time.Until(l.held.nextDueTime()))
	if l.window.settled > 0 {
		pause = min(pause, checkpointDelay-time.Since(l.settler.unwrittenSince))
	}
	return max(pause, l.opts.PollMin), l.wake
}
