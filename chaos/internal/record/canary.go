package record

import (
	"bytes"
	"encoding/hex"
)

// A Canary is a secret of the run that stands for real ones. It may occur only where it is needed. Output,
// metrics, answers and records of failures must not contain it.
type Canary struct {
	Name, Value string
	Sent        bool // part of messages, which a failing broker may print
}

// The secrets. Messages and their stored copies contain the whole card.
const (
	DatabasePassword = "canary-pg-5d0e61"
	BrokerPassword   = "canary-mq-93ab17"
	Card             = "tok_canary_4f8c02"
)

// Canaries are all secrets.
var Canaries = []Canary{
	{"the database's password", DatabasePassword, false}, {"the broker's password", BrokerPassword, false}, {"a card", Card, true},
}

// LeakedNames returns the names of the secrets in text, in plain form or in hexadecimal.
func LeakedNames(text []byte) []string { return leakedNames(text, true) }

// BrokerLeaks is LeakedNames for the broker's output, which may contain secrets of messages.
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
