package rabbitmq

import "testing"

// The intake is woken for what it waits for: room, the end of the last item in hand, or an item behind the one that
// is finished. Otherwise it sleeps on.
func TestTheIntakeIsWokenForWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		keys  []string // of the items, all of which are handed over that can be
		waits func(*lanes)
		want  bool
	}{
		{"nothing", []string{"", "k"}, func(*lanes) {}, false},
		{"an item where there is room", []string{"", "k"}, func(l *lanes) { l.offerNext() }, false},
		{"room", []string{"", "k", "l"}, func(l *lanes) { l.offerNext() }, true},
		{"the end of the last in hand", []string{"k"}, func(l *lanes) { l.hasRoom() }, true},
		{"both, in the order of the intake", []string{"k"}, func(l *lanes) { l.hasRoom(); l.offerNext() }, true},
		{"an item behind this one", []string{"k", "k"}, func(*lanes) {}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l, c := newLanes(3, 1<<20), &consumerChannel{}
			l.beginChannel(c)
			var handed []*item
			for _, key := range tt.keys {
				l.addItem(&item{channel: c, key: key})
				if it, _ := l.offerNext(); it != nil {
					handed = append(handed, it)
					l.noteHandedOver()
				}
			}
			l.signalRoom() // forgets what was waited for so far
			<-l.wake
			tt.waits(l)
			l.finishItem(handed[len(handed)-1])
			if woken := len(l.wake) == 1; woken != tt.want {
				t.Errorf("the intake is woken: %t, want %t", woken, tt.want)
			}
		})
	}
}
