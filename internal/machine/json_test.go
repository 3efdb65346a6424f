package machine_test

import (
	"encoding/json"
	"testing"
)

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("Marshal: %v", err)
	}
	return text
}

func unmarshal(t testing.TB, text []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(text, v); err != nil {
		t.Fatalf("Unmarshal(%s): %v", text, err)
	}
}

// decodes reports whether text is read into v.
func decodes(text []byte, v any) bool { return json.Unmarshal(text, v) == nil }
