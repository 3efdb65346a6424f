package broker

import (
	"strings"
	"testing"
)

func TestTheVirtualHostIsThatOfEveryBroker(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"": "/", "amqp://u:p@h": "/", "amqp://u:p@h/shop": "shop", "amqp://u:p@a:5672/shop, amqp://u:p@b:5672/shop": "shop",
	} {
		if got, err := findVirtualHost(list); got != want || err != nil {
			t.Errorf("vhostOf(%q) = %q, %v; want %q", list, got, err, want)
		}
	}
	for _, list := range []string{"amqp://u:secret@h/shop,", "amqp://u:secret@h:port/shop", "amqp://u:secret@h/shop,amqp://u:secret@h/other"} {
		if got, err := findVirtualHost(list); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("vhostOf(%q) = %q, %v; want an error without the password", list, got, err)
		}
	}
}
