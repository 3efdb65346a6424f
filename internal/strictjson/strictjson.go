// Package strictjson decodes JSON and refuses ambiguous documents: of a member given twice, or once as
// "amount" and once as "AMOUNT", encoding/json silently keeps the last. Its [Tokenizer] is the only one of
// the module: package idemkey makes fingerprints with it.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// MaxDepth is how deeply arrays and objects may be nested.
const MaxDepth = 128

// byteOrderMark is U+FEFF in UTF-8. A sender must not add it (RFC 8259, section 8.1).
var byteOrderMark = []byte("\xef\xbb\xbf")

var errByteOrderMark = errors.New("json: it begins with a byte order mark, which the sender must leave out")

// Unmarshal is json.Unmarshal, but it refuses data with duplicate member
// names (letter case aside) or nesting over [MaxDepth], and then leaves into
// as it was. Unknown members are accepted: a newer sender may have added them.
func Unmarshal(data []byte, into any) error {
	if bytes.HasPrefix(data, byteOrderMark) {
		return errByteOrderMark
	}
	if err := checkDocument(data); err != nil {
		return err
	}
	return prefixSyntaxError(json.Unmarshal(data, into))
}

// prefixSyntaxError makes a syntax error say that it is about JSON. All other errors of encoding/json do so.
func prefixSyntaxError(err error) error {
	if _, ok := err.(*json.SyntaxError); ok {
		return fmt.Errorf("json: %w", err)
	}
	return err
}
