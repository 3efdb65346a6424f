package signing

import (
	"bytes"
	"testing"
)

// The parser accepts exactly the text that a signer writes, byte for byte, so that a signature has one form.
func FuzzParse(f *testing.F) {
	p := &part{}
	f.Add(p.headerValue("orders-1"))
	for i := range p.sum {
		p.sum[i] = byte(7 * i)
	}
	f.Add(p.headerValue("a"))
	for _, value := range []string{"", "v1;;", "v1;a;" + string(bytes.Repeat([]byte("A"), 43)), "v1;a;" + string(bytes.Repeat([]byte("_"), 43)), "v1;a;\r\n"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		id, mac, ok := parseSignature(value)
		if !ok {
			return
		}
		if again := (&part{sum: mac}).headerValue(id); again != value {
			t.Errorf("%q is taken, and would be written %q", value, again)
		}
	})
}
