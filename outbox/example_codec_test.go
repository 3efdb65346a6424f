package outbox_test

import (
	"fmt"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/protobuf"
)

// Encode makes a message whose body is no JSON.
func ExampleEncode() {
	m := outbox.Encode(protobuf.Codec, outbox.Message{Topic: "name.changed", Step: "rename"}, wrapperspb.String("Ann"))
	fmt.Println(m.ContentType, len(m.Payload), "bytes")
	// Output: application/protobuf 5 bytes
}
