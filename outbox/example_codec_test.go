package outbox_test

import (
	"fmt"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/protobuf"
)

// A service lists what it sends, for its description: in Config.Emits, or in Emits of the step that sends it.
func ExampleOutputOf() {
	type order struct{ Item string }
	out := outbox.OutputOf[order]("order.created")
	fmt.Println(out.Type, out.Body)
	// Output: order.created outbox_test.order
}

// Encode makes a message whose body is no JSON.
func ExampleEncode() {
	m := outbox.Encode(protobuf.Codec, outbox.Message{Topic: "name.changed", Step: "rename"}, wrapperspb.String("Ann"))
	fmt.Println(m.ContentType, len(m.Payload), "bytes")
	// Output: application/protobuf 5 bytes
}
