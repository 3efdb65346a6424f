// Package asyncapitest checks AsyncAPI documents against the schema that the AsyncAPI Initiative publishes.
package asyncapitest

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

//go:embed testdata/asyncapi-3.0.0.json
var published []byte

// schema returns the published schema. It names draft-07 without the #, which the library does not know.
var schema = sync.OnceValues(func() (*jsonschema.Resolved, error) {
	const draft = `"http://json-schema.org/draft-07/schema`
	text := bytes.ReplaceAll(published, []byte(draft+`"`), []byte(draft+`#"`))
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	return s.Resolve(nil)
})

// Check reports an error of document.
func Check(t testing.TB, document []byte) {
	t.Helper()
	if err := Validate(document); err != nil {
		t.Errorf("%v\n%s", err, document)
	}
}

// Validate returns an error if document breaks the published schema, or a rule of the specification that a schema cannot
// state: a reference must lead somewhere, and an operation's messages must be those of its channel.
func Validate(document []byte) error {
	s, err := schema()
	if err != nil {
		return err
	}
	var d any
	if err := json.Unmarshal(document, &d); err != nil {
		return err
	}
	if err := s.Validate(d); err != nil {
		return err
	}
	root, _ := d.(map[string]any)
	errs := checkReferences(root, root, "#")
	operations, _ := root["operations"].(map[string]any)
	for name, op := range operations {
		operation := op.(map[string]any)
		errs = append(errs, checkMessages(root, operation, "operation "+name))
		if reply, ok := operation["reply"].(map[string]any); ok {
			errs = append(errs, checkMessages(root, reply, "reply of operation "+name))
		}
	}
	return errors.Join(errs...)
}

// checkReferences returns an error for each reference in v that leads nowhere.
func checkReferences(root map[string]any, v any, at string) (errs []error) {
	switch v := v.(type) {
	case map[string]any:
		if to, ok := v["$ref"].(string); ok && follow(root, to) == nil {
			errs = append(errs, fmt.Errorf("%s: there is no %s", at, to))
		}
		for name, member := range v {
			errs = append(errs, checkReferences(root, member, at+"/"+name)...)
		}
	case []any:
		for i, element := range v {
			errs = append(errs, checkReferences(root, element, fmt.Sprint(at, "/", i))...)
		}
	}
	return errs
}

// follow returns what a reference leads to, nil if it leads nowhere.
func follow(root map[string]any, reference string) any {
	path, ok := strings.CutPrefix(reference, "#/")
	var at any = root
	for name := range strings.SplitSeq(path, "/") {
		object, isObject := at.(map[string]any)
		if !ok || !isObject {
			return nil
		}
		at = object[name]
	}
	return at
}

// checkMessages returns an error if an operation, or its reply, has a message that its channel does not have, or if the
// reply's address is known twice.
func checkMessages(root, of map[string]any, what string) error {
	channel, _ := of["channel"].(map[string]any)
	to, _ := channel["$ref"].(string)
	messages, _ := of["messages"].([]any)
	outside := func(m any) bool {
		message, _ := m.(map[string]any)
		ref, _ := message["$ref"].(string)
		return !strings.HasPrefix(ref, to+"/messages/")
	}
	if slices.ContainsFunc(messages, outside) {
		return fmt.Errorf("%s: a message is not one of the channel %s", what, to)
	}
	target, _ := follow(root, to).(map[string]any)
	if of["address"] != nil && target["address"] != nil {
		return fmt.Errorf("%s: it has an address, and so has the channel %s", what, to)
	}
	return nil
}
