package strictjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/sagamill/sagamill/internal/strictjson"
)

// oracle decides what Unmarshal must decide, by encoding/json's own tokens:
// several times slower, but with no opinion of its own on what a name is.
func oracle(data []byte, into any) error {
	if err := checkTokens(data); err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// A frame is an open object or array.
type frame struct {
	names     map[string]bool // nil in an array
	valueNext bool            // in an object: the name has been read
}

func checkTokens(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var open []frame
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) && len(open) == 0 {
			return errors.New("json: no value")
		}
		if err != nil {
			return fmt.Errorf("json: %w", err)
		}
		if open, err = step(open, token); err != nil {
			return err
		}
		if len(open) == 0 {
			break
		}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("json: data after the value")
	}
	return nil
}

func step(open []frame, token json.Token) ([]frame, error) {
	if token == json.Delim('}') || token == json.Delim(']') {
		return open[:len(open)-1], nil
	}
	if len(open) > 0 {
		top := &open[len(open)-1]
		if top.names != nil && !top.valueNext {
			name, folded := token.(string), strings.Map(smallest, token.(string))
			if top.names[folded] {
				return nil, fmt.Errorf("json: member %.40q is given twice", name)
			}
			top.names[folded] = true
			top.valueNext = true
			return open, nil
		}
		top.valueNext = false
	}
	switch token {
	case json.Delim('{'):
		open = append(open, frame{names: map[string]bool{}})
	case json.Delim('['):
		open = append(open, frame{})
	}
	if len(open) > strictjson.MaxDepth {
		return nil, fmt.Errorf("json: nested more than %d deep", strictjson.MaxDepth)
	}
	return open, nil
}

func smallest(r rune) rune {
	for {
		next := unicode.SimpleFold(r)
		if next <= r {
			return next
		}
		r = next
	}
}
