package idemkey_test

import (
	"fmt"
	"testing"

	"github.com/sagamill/sagamill/idemkey"
)

// Every part counts, whatever the others hold, and the client's key is not in it.
func TestDownstreamKey(t *testing.T) {
	t.Parallel()
	secret := []byte("secret")
	seen := make(map[string]string)
	for _, c := range []struct {
		secret []byte
		id     idemkey.Identity
		step   string
	}{
		{secret, idemkey.Identity{Namespace: "http", Scope: "a", Key: "k"}, "charge"},
		{[]byte("other"), idemkey.Identity{Namespace: "http", Scope: "a", Key: "k"}, "charge"},
		{secret, idemkey.Identity{Namespace: "step:pay", Scope: "a", Key: "k"}, "charge"},
		{secret, idemkey.Identity{Namespace: "http", Scope: "b", Key: "k"}, "charge"},
		{secret, idemkey.Identity{Namespace: "http", Scope: "a", Key: "l"}, "charge"},
		{secret, idemkey.Identity{Namespace: "http", Scope: "a", Key: "k"}, "refund"},
		{secret, idemkey.Identity{Namespace: "http", Scope: "ak", Key: ""}, "charge"},
		{secret, idemkey.Identity{Namespace: "http", Scope: "a", Key: "kcharge"}, ""},
		{secret, idemkey.Identity{Namespace: "httpa", Scope: "", Key: "k"}, "charge"},
	} {
		key := idemkey.DownstreamKey(c.secret, c.id, c.step)
		of := fmt.Sprintf("%+v", c)
		if other, ok := seen[key]; ok || len(key) != 64 {
			t.Errorf("%s: key %s is that of %s", of, key, other)
		}
		seen[key] = of
	}
}

// A retry after a deployment must use the key that the provider has seen.
func TestDownstreamKeyNeverChanges(t *testing.T) {
	t.Parallel()
	const want = "a37c64cb31efae7282ca21b1ea5211b84acbccfc6adb99e5fcdc924c27d5dd91"
	if got := idemkey.DownstreamKey([]byte("secret"), idemkey.Identity{Namespace: "http", Scope: "a", Key: "k"}, "charge"); got != want {
		t.Errorf("DownstreamKey = %s, want %s", got, want)
	}
}

// A provider is given a key that only this service can make.
func ExampleDownstreamKey() {
	id := idemkey.Identity{Namespace: "http", Scope: "tenant-1", Key: "client-chosen"} // of idemkey.Info
	fmt.Println(idemkey.DownstreamKey([]byte("32 random bytes from the settings"), id, "charge")[:16])
	// Output: 7c9c712ee43c61b8
}
