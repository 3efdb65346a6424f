package console

import (
	"fmt"
	"strings"

	"github.com/sagamill/sagamill/operator"
)

// A paceView is the sum of the paces of all places.
type paceView struct {
	minutes []operator.MinutePace
	Known   int      // of the last minutes: the others are counted in part
	Missing []string // places that could not be read, and why
	Loading bool     // the stream sends the pace
}

func newPaceView() *paceView { return &paceView{} }

func (v *paceView) add(p *operator.Pace) {
	if v.minutes == nil {
		v.minutes, v.Known = make([]operator.MinutePace, len(p.Minutes)), p.Known
	}
	v.Known = min(v.Known, p.Known)
	for i, m := range p.Minutes {
		sum := &v.minutes[i]
		sum.Started, sum.Completed, sum.Compensated = sum.Started+m.Started, sum.Completed+m.Completed, sum.Compensated+m.Compensated
	}
}

// A sparkline is a small chart of the last hour.
type sparkline struct {
	Label string
	Last  int // in the last whole minute
	Sum   int
	Peak  int
	Known int
	Line  string // the points of an SVG polyline in a box of sparkWidth and sparkHeight
	Area  string // the same, closed at the bottom
	Class string
}

const (
	sparkWidth  = 240
	sparkHeight = 48
)

// Sparklines returns the charts.
func (v *paceView) Sparklines() []sparkline {
	return []sparkline{
		v.drawSparkline("Started", "started", func(m operator.MinutePace) int { return m.Started }),
		v.drawSparkline("Completed", "completed", func(m operator.MinutePace) int { return m.Completed }),
		v.drawSparkline("Compensated", "compensated", func(m operator.MinutePace) int { return m.Compensated }),
	}
}

// drawSparkline draws the whole minutes that are known. The current minute is left out, because it looks like a fall. Only
// the sum has it, as the cards of states do.
func (v *paceView) drawSparkline(label, class string, of func(operator.MinutePace) int) sparkline {
	s := sparkline{Label: label, Class: class, Known: v.Known}
	if len(v.minutes) < 2 {
		return s
	}
	whole := v.minutes[:len(v.minutes)-1]
	for _, m := range whole {
		s.Peak = max(s.Peak, of(m))
	}
	for _, m := range v.minutes {
		s.Sum += of(m)
	}
	s.Last = of(whole[len(whole)-1])
	var points []string
	first := max(0, len(v.minutes)-v.Known)
	for i := first; i < len(whole); i++ {
		x := float64(i) * sparkWidth / float64(len(whole)-1)
		y := sparkHeight - 2 - float64(of(whole[i]))*(sparkHeight-6)/float64(max(1, s.Peak))
		points = append(points, fmt.Sprintf("%.1f,%.1f", x, y))
	}
	if len(points) > 0 {
		s.Line = strings.Join(points, " ")
		begin, _, _ := strings.Cut(points[0], ",")
		s.Area = fmt.Sprintf("%s,%d %s %d,%d", begin, sparkHeight, s.Line, sparkWidth, sparkHeight)
	}
	return s
}
