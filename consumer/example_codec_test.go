package consumer_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/protobuf"
)

// A handler takes a picture as it came.
func ExampleOnBytes() {
	in := consumer.OnBytes("picture.taken", func(_ context.Context, _ pgx.Tx, in consumer.Message[[]byte], _ consumer.Emit) error {
		fmt.Println(in.Metadata[outbox.PropertyContentType], len(in.Body), "bytes")
		return nil
	})
	_, err := in.Invoke(context.Background(), nil, consumer.Delivery{
		Payload: []byte("PNG"), Metadata: message.Metadata{outbox.PropertyContentType: "image/png"},
	})
	fmt.Println(err)
	// Output:
	// image/png 3 bytes
	// <nil>
}

// A step reads protocol buffers, and still reads JSON where a message says so.
func ExampleInput() {
	in := consumer.On("name.changed", func(_ context.Context, _ pgx.Tx, in consumer.Message[*wrapperspb.StringValue], _ consumer.Emit) error {
		fmt.Println(in.Body.GetValue())
		return nil
	})
	in.Codecs = []outbox.Codec{protobuf.Codec}
	sent := outbox.Encode(protobuf.Codec, outbox.Message{Topic: "name.changed", Step: "rename"}, wrapperspb.String("Ann"))
	_, err := in.Invoke(context.Background(), nil, consumer.Delivery{
		Payload: sent.Payload, Metadata: message.Metadata{outbox.PropertyContentType: sent.ContentType},
	})
	fmt.Println(err)
	// Output:
	// Ann
	// <nil>
}
