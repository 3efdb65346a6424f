package signing_test

import (
	"bytes"
	"encoding/base64"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/signing"
)

// A settings is a struct of a service, which may get printed by accident.
type settings struct {
	key     signing.Key
	pointer *signing.Key
	keys    []signing.Key
	secret  signing.Secret
	byID    map[string]signing.Secret
	any     any
}

// An exported is one that encoders look into.
type exported struct {
	Key     signing.Key
	Pointer *signing.Key
	Keys    []signing.Key
	Secret  signing.Secret
	Address *signing.Secret
}

// Printing, logging or encoding a key, a secret, or a value that holds one, does not reveal the secret.
// Errors do not reveal it either.
func TestNoSecretIsTold(t *testing.T) {
	t.Parallel()
	k := key("orders-1", "orders")
	inner := settings{k, &k, []signing.Key{k}, k.Secret, map[string]signing.Secret{"a": k.Secret}, k.Secret}
	outer := exported{k, &k, []signing.Key{k}, k.Secret, &k.Secret}
	values := map[string]any{
		"key": k, "its address": &k, "keys": []signing.Key{k}, "secret": k.Secret, "its own address": &k.Secret,
		"fields that are not exported": inner, "their address": &inner, "within another": struct{ of settings }{inner},
		"exported fields": outer, "the address of those": &outer,
		"signer": signer(t, k), "verifier": verifier(t, k), "what they are": *verifier(t, k),
	}
	for what, value := range values {
		var told bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "% X", "%q", "%d", "%c", "%08b"} {
			fmt.Fprintf(&told, verb+"\n", value)
		}
		for _, handler := range []slog.Handler{slog.NewTextHandler(&told, nil), slog.NewJSONHandler(&told, nil)} {
			slog.New(handler).Info("key", "value", value, slog.Group("group", "value", value))
		}
		for _, encode := range []func(any) error{json.NewEncoder(&told).Encode, xml.NewEncoder(&told).Encode, gob.NewEncoder(&told).Encode} {
			if err := encode(value); err != nil { // there may be nothing to encode
				fmt.Fprintln(&told, err)
			}
		}
		expectUntold(t, what, told.String())
	}
	msg := signed(t, k)
	msg.Payload = nil
	expectUntold(t, "errors", fmt.Sprint(verifier(t, k).Verify("pay", msg), verifier(t, key("x", "y")).Verify("pay", msg)))
	if text := fmt.Sprint(k) + k.Secret.String(); text != "key orders-1 of orders(secret)" {
		t.Errorf("a key and its secret are printed %q", text)
	}
}

// expectUntold looks for the secret of the key orders-1 in all the ways in which bytes are written.
func expectUntold(t *testing.T, what, told string) {
	t.Helper()
	secret := secretOf("orders-1")[:12]
	var forms []string
	for _, format := range []string{"%s", "%x", "%X", "% X", "%q", "%v", "%#v", "%d", "%c", "%08b"} {
		forms = append(forms, strings.Trim(fmt.Sprintf(format, secret), "[]\"}"))
	}
	forms[6] = strings.TrimPrefix(forms[6], "[]byte{")
	forms = append(forms, base64.StdEncoding.EncodeToString(secret), hex.EncodeToString(secret))
	for _, form := range forms {
		if len(form) < len(secret) {
			t.Fatalf("%q is not the secret", form)
		}
		if strings.Contains(told, form) {
			t.Errorf("%s: %q is told:\n%s", what, form, told)
		}
	}
}

// The text of a secret says only that it is a secret.
func TestASecretIsOpaque(t *testing.T) {
	t.Parallel()
	s := signing.NewSecret(secretOf("a"))
	text, err := s.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(map[string]any{"of": s})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("a", "of", s)
	for how, got := range map[string]string{
		"String": s.String(), "MarshalText": string(text), "%#v": fmt.Sprintf("%#v", s), "JSON": string(encoded), "slog": log.String(),
		"an empty one": signing.Secret{}.String(),
	} {
		if !strings.Contains(got, "(secret)") {
			t.Errorf("%s tells %q", how, got)
		}
	}
}
