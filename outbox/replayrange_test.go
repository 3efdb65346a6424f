package outbox

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// kept fills the log of a relay that keeps what it has published with n messages, an
// hour old.
func (f *fixture) kept(t *testing.T, n int) {
	t.Helper()
	f.fill(t, n)
	f.exec(t, "UPDATE {schema}.outbox SET created_at = created_at - interval '1 hour'")
}

// anHourAgo picks what kept has written, and nothing since.
func anHourAgo() ReplayFilter {
	return ReplayFilter{Since: time.Now().Add(-2 * time.Hour), Until: time.Now().Add(-time.Minute)}
}

// A range of many messages is replayed batch by batch, again as often as one likes,
// without the copies and without what is written meanwhile.
func TestARangeIsReplayedInBatches(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const n = 2*replayBatch + 10
	f.kept(t, n)
	before := f.texts(t, "SELECT message_id || ' ' || created_at FROM {schema}.outbox ORDER BY id")
	for round := range 2 {
		var batches []int
		p, err := f.letters(t).ReplayRange(t.Context(), ReplayFilter{Since: time.Now().Add(-2 * time.Hour)}, &RangeOptions{
			Progress: func(p RangeProgress) error {
				batches = append(batches, len(p.Batch))
				f.write(t, msg("later", "x"))
				return nil
			},
		})
		found := n + 3*round // what was written in the round before
		if err != nil || p.Replayed != found || p.Found != found || !slices.Equal(batches[:2], []int{replayBatch, replayBatch}) {
			t.Fatalf("round %d: %+v in batches of %v, %v; want %d messages", round, p, batches, err, found)
		}
		copies := f.texts(t, "SELECT message_id || ' ' || created_at FROM {schema}.outbox WHERE key <> 'later' ORDER BY id OFFSET $1", n*(round+1))
		if !slices.Equal(copies, before) {
			t.Errorf("round %d: %d copies, which differ from what was written", round, len(copies))
		}
	}
	if got := f.texts(t, "SELECT count(*)::text FROM {schema}.outbox_other WHERE leaf = -1"); got[0] != "4023" {
		t.Errorf("%s copies are marked as such, want 4023", got[0])
	}
}

// A replay that was interrupted ends between two batches, says how far it has got, and
// goes on from there.
func TestAnInterruptedRangeGoesOn(t *testing.T) {
	t.Parallel()
	errEnough := errors.New("enough")
	for name, interrupt := range map[string]func(cancel func()) error{
		"by its context":  func(cancel func()) error { cancel(); return nil },
		"by its progress": func(func()) error { return errEnough },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.kept(t, 5)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			filter := anHourAgo()
			p, err := f.letters(t).ReplayRange(ctx, filter, &RangeOptions{
				Rate:     2, // in a second, and so in a batch
				Progress: func(RangeProgress) error { return interrupt(cancel) },
			})
			if p.Replayed != 2 || p.Found != 5 || p.Last == 0 || !errors.Is(err, errEnough) && !errors.Is(err, context.Canceled) || f.count(t, "outbox") != 5+2 {
				t.Fatalf("interrupted: %+v, %v; want 2 of 5", p, err)
			}
			filter.After = p.Last
			p, err = f.letters(t).ReplayRange(t.Context(), filter, nil)
			if err != nil || p.Replayed != 3 || p.Found != 3 || f.count(t, "outbox") != 5+5 {
				t.Errorf("it goes on: %+v, %v; want 3 of 3", p, err)
			}
			filter.After = p.Last
			if _, err = f.letters(t).ReplayRange(t.Context(), filter, nil); !errors.Is(err, ErrNotKept) {
				t.Errorf("and behind the end: %v", err)
			}
		})
	}
}

func TestADryRunOfARangeStoresNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.kept(t, replayBatch+1)
	var ids []int64
	p, err := f.letters(t).ReplayRange(t.Context(), anHourAgo(), &RangeOptions{DryRun: true, Rate: 0, Progress: func(p RangeProgress) error {
		for _, k := range p.Batch {
			ids = append(ids, k.ID)
		}
		return nil
	}})
	if err != nil || p.Replayed != replayBatch+1 || len(ids) != replayBatch+1 || !slices.IsSorted(ids) || f.count(t, "outbox") != replayBatch+1 {
		t.Errorf("dry run: %+v, %v, %d messages told of, %d stored", p, err, len(ids), f.count(t, "outbox"))
	}
	if oldest, err := f.letters(t).Oldest(t.Context()); err != nil || !oldest.Before(time.Now().Add(-30*time.Minute)) {
		t.Errorf("Oldest = %s, %v; want an hour ago", oldest, err)
	}
	f.exec(t, "TRUNCATE {schema}.outbox")
	if oldest, err := f.letters(t).Oldest(t.Context()); err != nil || !oldest.IsZero() {
		t.Errorf("Oldest of an empty log = %s, %v", oldest, err)
	}
}

func TestAReplayRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.kept(t, 1)
	now := time.Now()
	for name, tt := range map[string]struct {
		filter ReplayFilter
		opts   RangeOptions
		want   error
		says   string
	}{
		"nothing named":  {ReplayFilter{Scope: "s"}, RangeOptions{}, ErrDeskInvalid, "Key or a Since"},
		"until alone":    {ReplayFilter{Until: now}, RangeOptions{}, ErrDeskInvalid, "Key or a Since"},
		"backwards":      {ReplayFilter{Since: now, Until: now.Add(-time.Hour)}, RangeOptions{}, ErrDeskInvalid, "nothing is written since"},
		"negative rate":  {anHourAgo(), RangeOptions{Rate: -1}, ErrDeskInvalid, "Rate"},
		"negative after": {ReplayFilter{Key: "k", After: -1}, RangeOptions{}, ErrDeskInvalid, "After"},
		"later":          {ReplayFilter{Since: now}, RangeOptions{}, ErrNotKept, "Retention"},
	} {
		_, err := f.letters(t).ReplayRange(t.Context(), tt.filter, &tt.opts)
		if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", name, err, tt.says)
		}
	}
}

// Copies are not kept, however long messages are: they could not be replayed.
func TestCopiesAreNotKept(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.keeping(t, msg("k", "1"), msg("k", "2"))
	if _, err := f.replay(t, ReplayFilter{Key: "k"}, false); err != nil {
		t.Fatal(err)
	}
	if got := f.count(t, "outbox_other"); got != 2 {
		t.Fatalf("%d copies, want 2", got)
	}
	start(t, f.brisk(t, RelayOptions{Retention: time.Hour, Lanes: 1}))
	eventually(t, "the copies are published and gone", func() bool { return len(f.broker.payloads()) == 4 && f.empty(t, len(leaves)-1) })
	if got := f.count(t, "outbox"); got != 2 {
		t.Errorf("%d messages are kept, want 2", got)
	}
}
