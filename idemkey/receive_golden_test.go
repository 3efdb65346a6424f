package idemkey

import (
	"encoding/hex"
	"net/http/httptest"
	"testing"
)

// goldenSums are fingerprints as the first release of v1 made them. A retry meets records
// that hold them: they may never change.
var goldenSums = []struct {
	name        string
	opts        FingerprintOptions
	contentType string
	body        string
	want        string
}{
	{"plain", FingerprintOptions{}, "application/json", `{"b":[1.0,{"d":"\u0041"}],"a":{"":1}}`,
		"9ef3f98b073e4b74140415cf7db2b75fb0034d12bbc3dfdd912e35183cddc8b7"},
	{"no body", FingerprintOptions{}, "", "",
		"297315997cd2268a2041b6f566766410a331acff40ad793e3d5e5e90cf1411f5"},
	{"invalid", FingerprintOptions{}, "application/json", `{"a":1,"a":2}`,
		"1d5de283840d3ddce200bb060161f445720bb4a4cfdcc5707086a4e0913c7c30"},
	{"form", FingerprintOptions{}, "application/x-www-form-urlencoded", "b=2&a=1&a=%30",
		"a665ef4ab95d749fab82e7805ce712c69ca29afae75fc33f0a1c68edb7046181"},
	{"multipart", FingerprintOptions{}, "multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"m\"\r\n\r\n1\r\n--b--\r\n",
		"d179fcc3d98fe4b1390af346c54a04a77a7d6717ef0690e3d8f164a7f0733958"},
	{"secret", FingerprintOptions{Secret: []byte("secret")}, "application/json", `{"a":1}`,
		"5b8c9a07d8ea86c7f866a7b7979de6907d98f0d96512e5d2dc058c0d1ded059f"},
	{"raw", FingerprintOptions{Raw: true}, "application/json", `{"a": 1}`,
		"ef51db13ea3d082d87488c0402af6f4bbc2f80ede4d527fc3e6cccfcf32f7f70"},
	{"headers", FingerprintOptions{IncludeHeaders: []string{"api-version", "X-Absent"}}, "application/json", `{"a":1}`,
		"45b1f328860abac0a7bc96e8ab1098331270a3e37c2e49a81511543610f7e185"},
	{"excluded", FingerprintOptions{ExcludeFields: []string{"at", "$.meta.nonce", "a.b.c"}}, "application/json",
		`{"at":1,"meta":{"nonce":1,"k":[{"at":1}]},"a":{"b":{"c":1,"d":2},"b.c":3},"a.b":{"c":1},"":{"at":1,"k":2}}`,
		"574887707a0bb5e2909a0ab7a39bd2872666d0c1b884745ace89034bdac98167"},
	{"excluded in array", FingerprintOptions{ExcludeFields: []string{"at"}}, "application/json", `[{"at":1}]`,
		"5d64919dc52a79ecf26a1991a328cf3509a9e9579db067f1cbb2a3acd66a5f34"},
	{"included", FingerprintOptions{IncludeFields: []string{"order.id", "$.items"}}, "application/json",
		`{"order":{"id":{"x":1},"at":1},"items":[{"a":1}],"order.id":7,"z":{"items":1},"":{"items":1}}`,
		"1034f5010690707c24a8f958d2b575008b4d01bfdcf54637c197f24782aa13f6"},
	{"included above", FingerprintOptions{IncludeFields: []string{"a.b"}}, "application/json", `{"a":[{"b":1},5],"a.b":{"c":1}}`,
		"bc410ff1c14bb1c4c5ee07d73f9206b2295ecac2f1607575c2a5e555a9ff10a0"},
	{"included in array", FingerprintOptions{IncludeFields: []string{"id"}}, "application/json", `[{"id":1},2]`,
		"32ea053166bc065f610166f004ccdf4a940c9905fb7b331f1208c007fcb12820"},
}

func TestGoldenSums(t *testing.T) {
	t.Parallel()
	for _, tt := range goldenSums {
		o := &Options{Fingerprint: tt.opts}
		o.prepareLookups()
		r := httptest.NewRequest("POST", "/orders/1?b=2&a=1", nil)
		r.Header.Set("Content-Type", tt.contentType)
		r.Header.Set("Api-Version", "7")
		fp, err := o.fingerprintOf(r, []byte(tt.body))
		if got := hex.EncodeToString(fp.Sum); err != nil || got != tt.want {
			t.Errorf("%s: %s, %v; want %s", tt.name, got, err, tt.want)
		}
	}
}
