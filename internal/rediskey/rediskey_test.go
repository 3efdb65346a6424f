package rediskey

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
)

// Tuples that join to one string have keys of their own, and the digest is the
// hash tag of each.
func TestOf(t *testing.T) {
	t.Parallel()
	seen := make(map[string]idemkey.Identity)
	for _, id := range []idemkey.Identity{
		{Namespace: "n", Scope: "a:b", Key: "c"},
		{Namespace: "n", Scope: "a", Key: "b:c"},
		{Namespace: "n:a", Scope: "b", Key: "c"},
		{Namespace: "na", Scope: "b", Key: "c"},
		{Namespace: "n", Scope: "ab", Key: "c"},
		{Namespace: "n", Scope: "a", Key: "bc"},
		{Namespace: "n", Scope: "a\x01b", Key: "c"},
		{Namespace: "n", Scope: "a", Key: "\x01bc"},
		{Namespace: "n", Scope: "a\x00b", Key: "c"},
		{Namespace: "n", Scope: "a", Key: "b\x00c"},
		{Namespace: "n", Scope: "A", Key: "bc"},
		{Namespace: "n", Scope: "{a}", Key: "bc"},
	} {
		key := Of("p:", id)
		if other, ok := seen[key]; ok {
			t.Errorf("%+v and %+v are both %s", id, other, key)
		}
		seen[key] = id
		tag, found := strings.CutPrefix(key, "p:{")
		if !found || !strings.HasSuffix(tag, "}") || strings.ContainsAny(tag[:len(tag)-1], "{}") || len(tag) != 44 {
			t.Errorf("key of %+v is %q, want p:{digest}", id, key)
		}
	}
}

func TestCheckPrefix(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]bool{
		"idemkey:": true, "shop.prod-1/": true,
		"": false, "a b": false, "{a}": false, "a{": false, "ü": false, "a\n": false, "a*": false, strings.Repeat("a", 129): false,
	} {
		if err := CheckPrefix(prefix); (err == nil) != want {
			t.Errorf("CheckPrefix(%q) = %v, want ok: %t", prefix, err, want)
		}
	}
}

func TestCheckClient(t *testing.T) {
	t.Parallel()
	if CheckClient(nil) == nil {
		t.Error("no client is accepted")
	}
	for _, keeps := range []bool{true, false} {
		for _, client := range []redis.UniversalClient{
			redis.NewClient(&redis.Options{ContextTimeoutEnabled: keeps}),
			redis.NewClusterClient(&redis.ClusterOptions{ContextTimeoutEnabled: keeps}),
		} {
			if err := CheckClient(client); (err == nil) != keeps {
				t.Errorf("CheckClient(%T) with ContextTimeoutEnabled %t = %v", client, keeps, err)
			}
			_ = client.Close()
		}
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}, ContextTimeoutEnabled: true})
	defer ring.Close()
	if CheckClient(ring) == nil {
		t.Error("a Ring is accepted")
	}
}
