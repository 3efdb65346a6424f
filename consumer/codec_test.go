package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/protobuf"
)

// reverse is a codec of text that stands in reverse.
type reverse struct{}

func (reverse) ContentType() string { return "text/reverse" }

func (reverse) Reads(media string) bool {
	if media == "text/bug" {
		panic("a bug")
	}
	return media == "text/reverse" || media == "application/vnd.reverse+json"
}

func (reverse) Encode(any) ([]byte, error) { return nil, errors.New("it only reads") }

func (reverse) Decode(payload []byte, into any) error {
	if len(payload) == 0 {
		panic("there is nothing")
	}
	text := []byte{}
	for _, b := range payload {
		text = append([]byte{b}, text...)
	}
	*into.(*string) = string(text)
	return nil
}

// The content type of a message decides how its body is read.
func TestTheContentTypeDecidesTheCodec(t *testing.T) {
	t.Parallel()
	for contentType, c := range map[string]struct{ payload, want, wrong string }{
		"":                               {`"json"`, "json", ""},
		"application/json":               {`"json"`, "json", ""},
		"application/vnd.x+json":         {`"json"`, "json", ""},
		"application/vnd.reverse+json":   {"esrever", "reverse", ""}, // a codec comes before JSON
		"Text/Reverse; charset=utf-16":   {"esrever", "reverse", ""},
		"text/reverse":                   {"", "", "there is nothing"},
		"application/cloudevents+json":   {`"json"`, "", "set option Open"},
		"text/bug":                       {"", "", "a bug"},
		"application/protobuf":           {"", "", `content-type: "application/protobuf" is neither JSON nor of the step's Codecs`},
		"application/json;charset=latin": {`"json"`, "", "another charset"},
		"; ;":                            {`"json"`, "", "content-type is malformed"},
	} {
		var got string
		in := consumer.On("t", func(_ context.Context, _ pgx.Tx, in consumer.Message[string], _ consumer.Emit) error {
			got = in.Body
			return nil
		})
		in.Codecs = []outbox.Codec{reverse{}}
		_, err := in.Invoke(t.Context(), nil, consumer.Delivery{Payload: []byte(c.payload), Metadata: message.Metadata{outbox.PropertyContentType: contentType}})
		if got != c.want || (err == nil) != (c.wrong == "") || err != nil && (!strings.Contains(err.Error(), c.wrong) || !errors.Is(err, consumer.ErrTerminal)) {
			t.Errorf("%q: %q is read as %q, want %q: %v", contentType, c.payload, got, c.want, err)
		}
	}
	in := consumer.On("t", func(context.Context, pgx.Tx, consumer.Message[string], consumer.Emit) error { return nil })
	in.Codecs = []outbox.Codec{nil}
	if _, err := consumer.New(&pgxpool.Pool{}, nil, []consumer.Step{{Name: "pay", Action: in}}, nil); err == nil || !strings.Contains(err.Error(), "Codecs") {
		t.Errorf("a nil codec: %v", err)
	}
}

// A handler of bytes gets any payload as it came.
func TestBytesAreNotDecoded(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"", "application/json", "image/png", "; ;"} {
		var got []byte
		in := consumer.OnBytes("t", func(_ context.Context, _ pgx.Tx, in consumer.Message[[]byte], _ consumer.Emit) error {
			got = bytes.Clone(in.Body)
			clear(in.Body) // it is the handler's own: the parked copy keeps its bytes
			return nil
		})
		payload := []byte("\x00{")
		_, err := in.Invoke(t.Context(), nil, consumer.Delivery{Payload: payload, Metadata: message.Metadata{outbox.PropertyContentType: contentType}})
		if err != nil || string(got) != "\x00{" || string(payload) != "\x00{" {
			t.Errorf("%q: %q, payload %q, %v", contentType, got, payload, err)
		}
	}
	if _, err := consumer.OnBytes("t", nil).Invoke(t.Context(), nil, consumer.Delivery{}); err == nil {
		t.Error("a nil handler was called")
	}
}

// A message in protocol buffers goes from Encode to a handler and comes out the same.
func TestProtocolBuffers(t *testing.T) {
	t.Parallel()
	for _, body := range []*wrapperspb.StringValue{wrapperspb.String("an order"), {}} {
		m := outbox.Encode(protobuf.Codec, outbox.Message{Topic: "t"}, body)
		var got *wrapperspb.StringValue
		in := consumer.On("t", func(_ context.Context, _ pgx.Tx, in consumer.Message[*wrapperspb.StringValue], _ consumer.Emit) error {
			got = in.Body
			return nil
		})
		in.Codecs = []outbox.Codec{protobuf.Codec}
		d := consumer.Delivery{Payload: m.Payload, Metadata: message.Metadata{outbox.PropertyContentType: m.ContentType}}
		if _, err := in.Invoke(t.Context(), nil, d); err != nil || !proto.Equal(got, body) {
			t.Errorf("%v became %v: %v", body, got, err)
		}
		d.Payload = []byte{0xff}
		if _, err := in.Invoke(t.Context(), nil, d); !errors.Is(err, consumer.ErrTerminal) {
			t.Errorf("no protocol buffer: %v", err)
		}
		other := consumer.On("t", func(context.Context, pgx.Tx, consumer.Message[string], consumer.Emit) error { return nil })
		other.Codecs = in.Codecs
		if _, err := other.Invoke(t.Context(), nil, d); err == nil || !strings.Contains(err.Error(), "*string") {
			t.Errorf("a body that is no protocol buffer: %v", err)
		}
	}
	var refused error
	func() {
		defer func() { refused, _ = recover().(error) }()
		outbox.Encode(protobuf.Codec, outbox.Message{}, "text")
	}()
	if !errors.Is(refused, outbox.ErrInvalid) {
		t.Error(cmp.Diff(outbox.ErrInvalid, refused))
	}
}
