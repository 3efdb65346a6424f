// Package protobuf has a codec for messages whose bodies are Protocol Buffers.
//
// A writer encodes by outbox.Encode. A step reads by the Codecs of its Input, or of the service's Config; its handler
// takes a pointer to the generated type, such as consumer.On("orders", func(…, in consumer.Message[*pb.Order], …)). The
// action of a saga has the field Codec.
package protobuf

import (
	"fmt"
	"reflect"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/sagamill/sagamill/outbox"
)

// Codec writes application/protobuf. It reads that and the older names, application/x-protobuf and
// application/vnd.google.protobuf. A body is a pointer to a generated type.
//
// Equal bodies have equal bytes in one build of a program, but another program may write other bytes. A participant
// compares the bytes of messages with the same identity: to send a message again, send the same bytes.
var Codec outbox.Codec = codec{}

type codec struct{}

var mediaTypes = []string{"application/protobuf", "application/x-protobuf", "application/vnd.google.protobuf"}

func (codec) ContentType() string { return mediaTypes[0] }

func (codec) Reads(mediaType string) bool { return slices.Contains(mediaTypes, mediaType) }

func (codec) Encode(body any) ([]byte, error) {
	message, ok := body.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("protobuf: a %T is not a protocol buffer message", body)
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(message)
}

func (codec) Decode(payload []byte, into any) error {
	if message, ok := into.(proto.Message); ok {
		return proto.Unmarshal(payload, message)
	}
	pointer := reflect.ValueOf(into)
	if pointer.Kind() == reflect.Pointer && pointer.Elem().Kind() == reflect.Pointer {
		body := reflect.New(pointer.Type().Elem().Elem())
		if message, ok := body.Interface().(proto.Message); ok {
			pointer.Elem().Set(body)
			return proto.Unmarshal(payload, message)
		}
	}
	return fmt.Errorf("protobuf: the body is a %T, not a pointer to a generated type", into)
}
