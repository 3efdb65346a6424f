package topology

import (
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/google/uuid"
)

// Types that package jsonschema, or any other, may take for something else than encoding/json.
type (
	base  struct{ ID string }
	money struct{ cents int }
	tree  struct {
		Leaves []*tree `json:"leaves"`
		Name   string  `json:"name"`
	}
	chain  struct{ Next *chain }
	common struct {
		base
		Text     string            `json:"text"`
		Count    *int              `json:"count,omitempty"`
		At       time.Time         `json:"at"`
		Raw      json.RawMessage   `json:"raw"`
		Bytes    []byte            `json:"bytes"`
		Number   json.Number       `json:"number"`
		UUID     uuid.UUID         `json:"uuid"`
		Names    map[string]int    `json:"names"`
		Numbered map[int]*base     `json:"numbered"`
		List     []base            `json:"list"`
		Any      any               `json:"any"`
		Wait     time.Duration     `json:"wait"`
		Zero     time.Time         `json:"zero,omitzero"`
		Skipped  string            `json:"-"`
		Methods  fmt.Stringer      `json:"methods"`
		Price    money             `json:"price"`
		Big      *big.Int          `json:"big"`
		Keys     map[uuid.UUID]int `json:"keys"`
		Array    [2]int8           `json:"array"`
		Ratio    float32           `json:"ratio"`
		OK       bool              `json:"ok"`
	}
	quoted struct {
		Amount int64 `json:"amount,string"`
	}
	named struct {
		base `json:"base"`
	}
	Optional struct {
		ID string `json:"id,omitempty"`
	}
	hidden struct {
		*Optional `json:"optional,omitempty"`
	}
	Required struct{ X int }
	pointed  struct{ *Required }
	within   struct {
		Quoted quoted `json:"quoted"`
		OK     bool   `json:"ok"`
	}
	ambiguous struct {
		*left
		right
	}
	left  struct{ X, Y int }
	right struct{ X, Z int }
	times struct{ time.Time }
	calls struct {
		Call func() `json:"call,omitempty"`
	}
	tagged struct {
		Name string `json:"name" jsonschema:"minLength=1"`
	}
)

func (m money) MarshalJSON() ([]byte, error) { return json.Marshal(m.cents) }

// A schema has the members that the encoder writes, and no type that it does not write.
func TestSchemasOfGoTypes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		of   reflect.Type
		want string
	}{
		{reflect.TypeFor[string](), `{"type":"string"}`},
		{reflect.TypeFor[any](), `{}`},
		{reflect.TypeFor[struct{}](), `{"type":"object"}`},
		{reflect.TypeFor[*base](), `{"type":"object","properties":{"ID":{"type":"string"}},"required":["ID"]}`},
		{reflect.TypeFor[map[string]any](), `{"type":["null","object"],"additionalProperties":true}`},
		{reflect.TypeFor[[]byte](), `{"type":["null","string"],"contentEncoding":"base64"}`},
		{reflect.TypeFor[times](), `{"description":"topology.times in Go, which encodes itself"}`},
		{reflect.TypeFor[common](), `{"type":"object","properties":{"ID":{"type":"string"},"text":{"type":"string"},"count":{"type":["null","integer"]},` +
			`"at":{"type":"string","format":"date-time"},"raw":true,"bytes":{"type":["null","string"],"contentEncoding":"base64"},"number":{"type":"number"},` +
			`"uuid":{"type":"string"},"names":{"type":["null","object"],"additionalProperties":{"type":"integer"}},` +
			`"numbered":{"type":["null","object"],"additionalProperties":{"type":["null","object"],"properties":{"ID":{"type":"string"}},"required":["ID"]}},` +
			`"list":{"type":["null","array"],"items":{"type":"object","properties":{"ID":{"type":"string"}},"required":["ID"]}},"any":true,"wait":{"type":"integer"},` +
			`"zero":{"type":"string","format":"date-time"},"methods":true,"price":{"description":"topology.money in Go, which encodes itself"},` +
			`"big":{"description":"big.Int in Go, which encodes itself"},"keys":{"type":["null","object"],"additionalProperties":{"type":"integer"}},` +
			`"array":{"type":"array","items":{"type":"integer","minimum":-128,"maximum":127},"minItems":2,"maxItems":2},"ratio":{"type":"number"},"ok":{"type":"boolean"}},` +
			`"required":["ID","text","at","raw","bytes","number","uuid","names","numbered","list","any","wait","methods","price","big","keys","array","ratio","ok"]}`},
	} {
		if diff := cmp.Diff(tt.want, string(schemaOf(tt.of))); diff != "" {
			t.Errorf("%s: %s", tt.of, diff)
		}
	}
}

// Where package jsonschema makes no schema, or one that the encoder breaks, the smallest such type allows anything, and
// says why.
func TestASchemaThatWouldBeWrongSaysSo(t *testing.T) {
	t.Parallel()
	for of, want := range map[reflect.Type]string{
		reflect.TypeFor[quoted]():    `{"description":"topology.quoted in Go, of which no schema can be made: the encoder writes something else`,
		reflect.TypeFor[within]():    `{"type":"object","properties":{"quoted":{"description":"topology.quoted in Go, of which`,
		reflect.TypeFor[named]():     `{"description":"topology.named in Go, of which no schema can be made: the encoder writes something else`,
		reflect.TypeFor[pointed]():   `{"description":"topology.pointed in Go, of which no schema can be made: the encoder writes something else`,
		reflect.TypeFor[hidden]():    `{"description":"topology.hidden in Go, of which no schema can be made: the encoder writes something else`,
		reflect.TypeFor[ambiguous](): `{"description":"topology.ambiguous in Go, of which no schema can be made: the encoder writes something else`,
		reflect.TypeFor[tree]():      `{"type":"object","properties":{"leaves":{"description":"[]*topology.tree in Go, of which`,
		reflect.TypeFor[chain]():     `{"description":"topology.chain in Go, of which no schema can be made: ForType(topology.chain): cycle detected`,
		reflect.TypeFor[calls]():     `{"type":"object","properties":{"call":{"description":"func() in Go, of which`,
		reflect.TypeFor[tagged]():    `{"description":"topology.tagged in Go, of which no schema can be made: ForType(topology.tagged): tag must not begin`,
	} {
		if got := string(schemaOf(of)); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", of, got)
		}
	}
}

// The schema of each type, with or without fields in it, accepts what the encoder writes, zero or not.
func TestSchemasAcceptWhatTheEncoderWrites(t *testing.T) {
	t.Parallel()
	count := 1
	for _, body := range []any{
		common{}, &common{Count: &count, Numbered: map[int]*base{1: nil, 2: {}}, Names: map[string]int{"a": 1}, Raw: json.RawMessage(`[1]`), Number: "1.5", Any: 7, Big: big.NewInt(9)},
		quoted{7}, named{}, within{}, ambiguous{}, ambiguous{left: &left{}}, hidden{&Optional{"a"}}, pointed{}, tree{Leaves: []*tree{{Name: "a"}}}, chain{&chain{}}, times{}, money{7}, tagged{},
	} {
		var s jsonschema.Schema
		if err := json.Unmarshal(schemaOf(reflect.TypeOf(body)), &s); err != nil {
			t.Fatal(err)
		}
		resolved, err := s.Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		var value any
		if err := json.Unmarshal(text, &value); err != nil {
			t.Fatal(err)
		}
		if err := resolved.Validate(value); err != nil {
			t.Errorf("%T %s: %v", body, text, err)
		}
		if object, ok := value.(map[string]any); ok { // a newer sender may add members
			object["another"] = true
			if err := resolved.Validate(value); err != nil {
				t.Errorf("%T with a further member: %v", body, err)
			}
		}
	}
}
