package report_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/chaos/internal/judge"
	"github.com/sagamill/sagamill/chaos/internal/report"
)

// Each form of the report can be written of a verdict, also of one without any finding, and says how the
// services were built.
func TestReportIsWritten(t *testing.T) {
	t.Parallel()
	forms := map[string]func(io.Writer, *judge.Verdict) error{"text": report.WriteText, "HTML": report.WriteHTML, "JSON": report.WriteJSON}
	for name, write := range forms {
		var empty, built bytes.Buffer
		if err := write(&empty, &judge.Verdict{}); err != nil {
			t.Errorf("%s of an empty verdict: %v", name, err)
		}
		v := &judge.Verdict{}
		v.Run.Overlay = "bug.json"
		if err := write(&built, v); err != nil || !strings.Contains(built.String(), "bug.json") {
			t.Errorf("%s of services with an overlay: %v; it has bug.json: %t", name, err, strings.Contains(built.String(), "bug.json"))
		}
	}
}
