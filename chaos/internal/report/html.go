package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/chaos/internal/judge"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"verdict": verdictOf, "figure": okOrShort, "number": formatNumber,
	"legend": func() string { return legend }, "counts": formatCounts, "seconds": formatSeconds, "hits": totalHits, "chart": drawChart, "join": strings.Join,
}).Parse(pageText))

// WriteHTML writes one self-contained page without scripts.
func WriteHTML(w io.Writer, v *judge.Verdict) error { return page.Execute(w, v) }

func sortedKeys(all map[string]int) []string { return slices.Sorted(maps.Keys(all)) }

// The chart's size, in pixels.
const (
	chartWidth  = 960
	chartHeight = 160
)

// drawChart draws the sagas done and the messages waiting, second by second.
func drawChart(all []judge.Second) template.HTML {
	if len(all) < 2 {
		return ""
	}
	end := all[len(all)-1].At.Seconds()
	line := func(class string, of func(judge.Second) int) string {
		most := 1
		for _, s := range all {
			most = max(most, of(s))
		}
		var points strings.Builder
		for _, s := range all {
			fmt.Fprintf(&points, "%.1f,%.1f ", s.At.Seconds()/end*chartWidth, chartHeight-float64(of(s))/float64(most)*chartHeight)
		}
		return fmt.Sprintf(`<polyline class="%s" points="%s"><title>%s, up to %d</title></polyline>`, class, points.String(), class, most)
	}
	return template.HTML(fmt.Sprintf(`<svg viewBox="-4 -4 %d %d" role="img" aria-label="sagas done, messages waiting in outboxes and in queues">`, chartWidth+8, chartHeight+8) +
		line("done", func(s judge.Second) int { return s.Done }) +
		line("backlog", func(s judge.Second) int { return s.Backlog }) +
		line("ready", func(s judge.Second) int { return s.Ready }) + `</svg>`)
}
