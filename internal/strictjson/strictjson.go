// Package strictjson decodes JSON without encoding/json's leniencies that can
// change a meaning: of a member given twice, or once as "amount" and once as
// "AMOUNT", encoding/json silently keeps the last.
package strictjson

import (
	"encoding/json"
	"fmt"
)

// MaxDepth is how deeply arrays and objects may be nested.
const MaxDepth = 128

// Unmarshal is json.Unmarshal, but it refuses data with duplicate member
// names (letter case aside) or nesting over [MaxDepth], and then leaves into
// as it was. Unknown members are accepted: a newer sender may have added them.
func Unmarshal(data []byte, into any) error {
	if err := check(data); err != nil {
		return err
	}
	return prefixed(json.Unmarshal(data, into))
}

// prefixed makes a syntax error say what it is about: of encoding/json's
// errors, it alone does not.
func prefixed(err error) error {
	if _, ok := err.(*json.SyntaxError); ok {
		return fmt.Errorf("json: %w", err)
	}
	return err
}
