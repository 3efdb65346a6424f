package idemkey

import "encoding/json"

// rendered writes body anew, if it is JSON. That is wrong, and in no binary but one
// that is built with a bug of package planted.
func rendered(body []byte) []byte {
	var value any
	if json.Unmarshal(body, &value) != nil {
		return body
	}
	again, err := json.Marshal(value)
	if err != nil {
		return body
	}
	return again
}
