package record

import (
	"bytes"
	"encoding/hex"
)

// A Canary is a secret of the run, which stands for real ones. It may be where it is
// needed, and nowhere else: not in what a process prints, says of itself or answers, nor
// in what is kept of a failure.
type Canary struct {
	Name, Value string
	Sent        bool // in messages: a broker that fails prints those that it holds
}

// The secrets. A card is in messages and in what is kept of them whole.
const (
	DatabasePassword = "canary-pg-5d0e61"
	BrokerPassword   = "canary-mq-93ab17"
	Card             = "tok_canary_4f8c02"
)

// Canaries are all secrets.
var Canaries = []Canary{
	{"the database's password", DatabasePassword, false}, {"the broker's password", BrokerPassword, false}, {"a card", Card, true},
}

// LeakedNames returns the names of the secrets that are in text, as they are or in hexadecimal.
func LeakedNames(text []byte) []string { return leakedNames(text, true) }

// BrokerLeaks is Leaks for what the broker prints, but for those that are sent.
func BrokerLeaks(text []byte) []string { return leakedNames(text, false) }

func leakedNames(text []byte, sent bool) (names []string) {
	for _, c := range Canaries {
		if c.Sent && !sent {
			continue
		}
		if bytes.Contains(text, []byte(c.Value)) || bytes.Contains(text, []byte(hex.EncodeToString([]byte(c.Value)))) {
			names = append(names, c.Name)
		}
	}
	return names
}
