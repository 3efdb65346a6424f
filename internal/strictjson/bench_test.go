package strictjson_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/strictjson"
)

// order is a typical message of the given number of lines.
func order(lines int) []byte {
	var b strings.Builder
	b.WriteString(`{"orderId":"018f4f6e-7a3c-7c11-9d0a-5a1c0e6b2f44","customer":{"id":48213,"name":"Ada \"L.\" Young","country":"DE"},` +
		`"currency":"EUR","placedAt":"2025-03-14T09:26:53.589Z","express":false,"note":null,"lines":[`)
	for i := range lines {
		fmt.Fprintf(&b, `{"sku":"SKU-%05d","title":"Kanne für Tee","quantity":%d,"unitPrice":12.50},`, i, i%7+1)
	}
	return []byte(strings.TrimSuffix(b.String(), ",") + `],"total":123.45}`)
}

// members is an object of n members.
func members(n int) []byte {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"member%d":%d`, i, i)
	}
	return []byte("{" + strings.TrimPrefix(b.String(), ",") + "}")
}

func inputs() map[string][]byte {
	return map[string][]byte{
		"512B": order(3), "8kB": order(100),
		"deep":          []byte(strings.Repeat(`{"a":[`, 64) + "1" + strings.Repeat("]}", 64)),
		"members=32":    members(32),
		"members=1000":  members(1000),
		"members=10000": members(10_000),
		"escaped":       []byte(strings.ReplaceAll(string(members(1000)), "member", `\u006dember`)),
	}
}

func BenchmarkCheck(b *testing.B) {
	for name, data := range inputs() {
		for _, by := range []struct {
			name  string
			check func([]byte) error
		}{{"scanner", strictjson.Check}, {"tokens", checkTokens}} {
			b.Run(name+"/"+by.name, func(b *testing.B) { benchmark(b, data, by.check) })
		}
	}
}

// BenchmarkUnmarshal says what strictness adds to decoding into a struct.
func BenchmarkUnmarshal(b *testing.B) {
	type message struct {
		OrderID  string
		Customer struct {
			ID            int
			Name, Country string
		}
		Currency, PlacedAt string
		Express            bool
		Lines              []struct {
			SKU, Title string
			Quantity   int
			UnitPrice  float64
		}
		Total float64
	}
	for name, data := range map[string][]byte{"512B": order(3), "8kB": order(100)} {
		for _, by := range []struct {
			name      string
			unmarshal func([]byte, any) error
		}{{"scanner", strictjson.Unmarshal}, {"tokens", oracle}, {"lenient", json.Unmarshal}} {
			b.Run(name+"/"+by.name, func(b *testing.B) {
				benchmark(b, data, func(data []byte) error { return by.unmarshal(data, new(message)) })
			})
		}
	}
}

func benchmark(b *testing.B, data []byte, do func([]byte) error) {
	b.ReportAllocs()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if err := do(data); err != nil {
			b.Fatal(err)
		}
	}
}
