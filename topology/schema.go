package topology

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sagamill/sagamill/internal/guard"
)

// schemaOf returns the JSON Schema of t as package encoding/json encodes it. It uses only keywords that draft-07 and its
// successors share. Unknown members are allowed, since consumers ignore them. Each struct's schema is checked with
// samples that the encoder writes. If no correct schema can be made for a type, such as one that contains itself, its
// schema allows anything, and the description says why.
func schemaOf(t reflect.Type) json.RawMessage {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	r := reflector{known: map[reflect.Type]*jsonschema.Schema{}, visited: map[reflect.Type]bool{}}
	r.visitType(t)
	s, err := r.inferSchema(t)
	if err != nil {
		s = opaqueSchema(t, err)
	}
	openObjects(s)
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // it is made of strings and numbers
	}
	if string(text) == "true" {
		return json.RawMessage("{}")
	}
	return text
}

// A reflector finds the types that package jsonschema would get wrong, and gives it their schemas.
type reflector struct {
	known   map[reflect.Type]*jsonschema.Schema
	visited map[reflect.Type]bool
}

func (r *reflector) inferSchema(t reflect.Type) (*jsonschema.Schema, error) {
	return jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: r.known})
}

// visitType visits the parts of t before t itself, so that the smallest type without a schema becomes opaque.
func (r *reflector) visitType(t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if r.visited[t] {
		return
	}
	r.visited[t] = true
	if s := encodedSchema(t); s != nil {
		r.known[t] = s
		return
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map:
		r.visitType(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.Tag.Get("json") != "-" && (f.IsExported() || f.Anonymous) {
				r.visitType(f.Type)
			}
		}
	}
	s, err := r.inferSchemaOfParts(t)
	if err == nil {
		err = checkSamples(t, s)
	}
	if err != nil {
		r.known[t] = opaqueSchema(t, err)
	}
}

// inferSchemaOfParts returns the schema of a type whose parts have been visited. It makes the schema of a map itself,
// because package jsonschema does not know that a nil map is null and that keys may be numbers.
func (r *reflector) inferSchemaOfParts(t reflect.Type) (*jsonschema.Schema, error) {
	if t.Kind() != reflect.Map {
		return r.inferSchema(t)
	}
	values, err := r.inferSchema(t.Elem())
	if err != nil {
		return nil, err
	}
	s := &jsonschema.Schema{Types: []string{"null", "object"}, AdditionalProperties: values}
	r.known[t] = s
	return s, nil
}

// encodedSchema returns the schema of a type that encodes itself by methods, of a byte slice, and of an interface. It
// returns nil for any other type.
func encodedSchema(t reflect.Type) *jsonschema.Schema {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return &jsonschema.Schema{Type: "string", Format: "date-time"}
	case t == reflect.TypeFor[json.Number]():
		return &jsonschema.Schema{Type: "number"}
	case t == reflect.TypeFor[json.RawMessage](), t.Kind() == reflect.Interface:
		return &jsonschema.Schema{Types: allTypes}
	case hasMethodsOf[json.Marshaler](t), hasMethodsOf[json.Unmarshaler](t):
		return &jsonschema.Schema{Types: allTypes, Description: t.String() + " in Go, which encodes itself"}
	case hasMethodsOf[encoding.TextMarshaler](t), hasMethodsOf[encoding.TextUnmarshaler](t):
		return &jsonschema.Schema{Type: "string"}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 && encodedSchema(t.Elem()) == nil:
		return &jsonschema.Schema{Types: []string{"null", "string"}, ContentEncoding: "base64"}
	}
	return nil
}

func hasMethodsOf[I any](t reflect.Type) bool {
	return t.Implements(reflect.TypeFor[I]()) || reflect.PointerTo(t).Implements(reflect.TypeFor[I]())
}

// allTypes in a schema allow anything, null too. Without a type, package jsonschema would allow a pointer to be null
// only. openObjects removes them.
var allTypes = []string{"null", "boolean", "number", "string", "array", "object"}

func opaqueSchema(t reflect.Type, why error) *jsonschema.Schema {
	return &jsonschema.Schema{Types: allTypes, Description: fmt.Sprintf("%s in Go, of which no schema can be made: %v", t, why)}
}

// openObjects allows unknown members, and removes allTypes, which adds nothing.
func openObjects(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if len(s.Types) == len(allTypes) {
		s.Types = nil
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Not != nil {
		s.AdditionalProperties = nil
	}
	openObjects(s.AdditionalProperties)
	openObjects(s.Items)
	for _, property := range s.Properties {
		openObjects(property)
	}
}

// checkSamples returns an error if s rejects a value of t that the encoder has written, also for an unknown member.
func checkSamples(t reflect.Type, s *jsonschema.Schema) error {
	resolved, err := s.Resolve(nil)
	if err != nil {
		return err
	}
	zero, filled := reflect.New(t), reflect.New(t)
	fillValue(filled.Elem(), map[reflect.Type]bool{})
	for _, sample := range []reflect.Value{zero, filled} {
		var decoded any
		err := guard.Call(func() error {
			text, err := json.Marshal(sample.Interface())
			if err != nil {
				return err
			}
			return json.Unmarshal(text, &decoded)
		})
		if err != nil {
			continue // a method of the type rejects this sample: it says nothing about s
		}
		if err := resolved.Validate(decoded); err != nil {
			return fmt.Errorf("the encoder writes something else: %w", err)
		}
	}
	return nil
}

// fillValue sets v and everything in it to values other than zero. It skips types that encode themselves, and types
// that contain themselves: path has the types around v.
func fillValue(v reflect.Value, path map[reflect.Type]bool) {
	t := v.Type()
	if !v.CanSet() || path[t] || t.Kind() != reflect.Pointer && encodedSchema(t) != nil {
		return
	}
	path[t] = true
	defer delete(path, t)
	switch t.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("text")
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1.5)
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		fillValue(v.Elem(), path)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(t, 1, 1))
		fillValue(v.Index(0), path)
	case reflect.Map:
		key, value := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		fillValue(key, path)
		fillValue(value, path)
		v.Set(reflect.MakeMap(t))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range t.NumField() {
			fillValue(v.Field(i), path)
		}
	default:
		if v.CanInt() {
			v.SetInt(1)
		} else if v.CanUint() {
			v.SetUint(1)
		}
	}
}
