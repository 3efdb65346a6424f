package console

import (
	"strings"
	"testing"
)

// JSON is indented unless it is nested so deeply that its lines would be mostly blanks.
func TestDeepJSONIsNotIndented(t *testing.T) {
	t.Parallel()
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	for data, want := range map[string]string{
		`{"a":["x"]}`:  "{\n  \"a\": [\n    \"x\"\n  ]\n}",
		`"\"[[`:        `"\"[[`,
		nested(10_000): nested(10_000),
		`{"a":"\\","b":` + nested(maxIndented+1) + `}`: `{"a":"\\","b":` + nested(maxIndented+1) + `}`,
	} {
		if got := string(indentJSON([]byte(data))); got != want {
			t.Errorf("indentJSON(%.60q) has %d bytes: %.200q", data, len(got), got)
		}
	}
	shallow := `{"text":"` + strings.Repeat("[", 100) + `","list":` + nested(maxIndented-1) + `}`
	if got := string(indentJSON([]byte(shallow))); !strings.Contains(got, "\n  \"list\"") {
		t.Errorf("brackets within a text stop the indenting: %.200q", got)
	}
	deep := nested(10_000)
	diff := diffContent("Payload", deep, deep+" ")
	for _, line := range diff.Lines {
		if len(line.Text) > 2*len(deep) {
			t.Fatalf("a line of a difference has %d bytes", len(line.Text))
		}
	}
	if text := formatContent([]byte(deep), false); text != deep {
		t.Errorf("a payload of %d bytes is shown with %d", len(deep), len(text))
	}
	f := &Console{opts: Options{MaxContent: defaultMaxContent}}
	if v := f.newContent(Content{Kind: "state", Data: []byte(deep)}, len(deep)); v.Text != deep {
		t.Errorf("a state of %d bytes is shown with %d", len(deep), len(v.Text))
	}
}
