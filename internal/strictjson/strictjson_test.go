package strictjson_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/strictjson"
)

func TestUnmarshalRefuses(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		``, ` `, `{`, `{"a":1`, `{"a":1}x`, `{"a":1}{}`, `1 2`, `{"a":1,"a":2}`, `{"amount":1,"AMOUNT":999}`, "{\"s\":1,\"\u017f\":2}",
		`{"x":[{"b":1,"c":2,"B":3}]}`, `{"a" 1}`, `nul`,
		strings.Repeat("[", 20_000), strings.Repeat("[", 129) + strings.Repeat("]", 129), strings.Repeat(`{"a":`, 129) + "1" + strings.Repeat("}", 129),
	} {
		var v any
		if err := strictjson.Unmarshal([]byte(in), &v); err == nil {
			t.Errorf("Unmarshal(%.60q) = %v, want an error", in, v)
		}
	}
}

func FuzzWhatIsAcceptedMeansTheSame(f *testing.F) {
	for _, seed := range []string{`{"a":{"a":[1,{"a":null}]},"b":"x"}`, `[]`, `"s"`, `1e400`, `[[[]],{}]`, `{"a":1,"A":2}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var strict, lenient any
		if strictjson.Unmarshal(data, &strict) != nil {
			return
		}
		if err := json.Unmarshal(data, &lenient); err != nil || !reflect.DeepEqual(strict, lenient) {
			t.Errorf("accepted %q as %v; encoding/json says %v, %v", data, strict, lenient, err)
		}
	})
}
