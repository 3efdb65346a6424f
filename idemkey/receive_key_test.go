package idemkey

import (
	"testing"
)

func TestParseKey(t *testing.T) {
	t.Parallel()
	tests := []struct {
		value, want string
		ok          bool
	}{
		{"abc", "abc", true},
		{" abc\t", "abc", true},
		{`"abc"`, "abc", true},
		{`"a, b; c"`, "a, b; c", true},
		{`"a\"b\\c"`, `a"b\c`, true},
		{`"abc";v=1;w="x,\"y";z;*q=?1`, "abc", true},
		{`"abc"; v=:YQ==:`, "abc", true},
		{"8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324", true},
		{"a:b/c\\d", "a:b/c\\d", true},
		{"", "", false},
		{" \t", "", false},
		{`""`, "", false},
		{`"  "`, "", false},
		{"a b", "", false},
		{"a,b", "", false},
		{"a;b", "", false},
		{`a"b`, "", false},
		{`"abc`, "", false},
		{`"a\bc"`, "", false},
		{`"abc\`, "", false},
		{`"abc", "def"`, "", false},
		{`"abc"x`, "", false},
		{`"abc";`, "", false},
		{`"abc";V=1`, "", false},
		{`"abc";v=`, "", false},
		{`"abc";v=1,"d"`, "", false},
		{"a\x00b", "", false},
		{"a\x7fb", "", false},
		{"ä", "", false},
		{"\"a\x1fb\"", "", false},
		{"\"ä\"", "", false},
	}
	for _, tt := range tests {
		got, err := parseKey(tt.value, false)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("parseKey(%q) = %q, %v; want %q, ok %t", tt.value, got, err, tt.want, tt.ok)
		}
	}
	if _, err := parseKey("abc", true); err == nil {
		t.Error("strict syntax accepted a bare key")
	}
}

func TestUUIDKeys(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]bool{
		"8e03978e-40d5-43e8-bc93-6894a57f9324": true, "8E03978E-40D5-43E8-BC93-6894A57F9324": true, newUUID(): true,
		"8e03978e40d543e8bc936894a57f9324": false, "8e03978e-40d5-43e8-bc93-6894a57f932g": false,
		"8e03978e-40d5-43e8-bc93-6894a57f932-": false, "1": false, "": false,
	} {
		if err := UUIDKeys(key); (err == nil) != want {
			t.Errorf("UUIDKeys(%q) = %v, want ok %t", key, err, want)
		}
	}
}

func TestStepKey(t *testing.T) {
	t.Parallel()
	s, err := StepKey("a:b", "process-payment", "2")
	if s != "a:b:process-payment#2" || err != nil {
		t.Fatalf("StepKey = %q, %v", s, err)
	}
	if key, step, n, err := ParseStepKey(s); key != "a:b" || step != "process-payment" || n != "2" || err != nil {
		t.Errorf("ParseStepKey = %q, %q, %q, %v", key, step, n, err)
	}
}
