package management_test

import (
	"errors"
	"testing"

	"github.com/sagamill/sagamill/internal/management"
)

// What follows an unescaped slash in a password would be the virtual host, which messages name.
func TestParseURL(t *testing.T) {
	t.Parallel()
	for text, good := range map[string]bool{
		"http://user:password@localhost:15672/shop": true,
		"https://user:pass%2Fword@mq.example":       true,
		"https://watch:12/s3cret@mq.example:15672/": false,
		"https://watch:a@b/s3cret@mq.example/":      false,
		"https://mq.example:15672/shop":             false,
		"https://watch:12?s3cret@mq.example:15672/": false,
		"ftp://user:password@localhost/shop":        false,
	} {
		if _, err := management.ParseURL(text); (err == nil) != good || err != nil && !errors.Is(err, management.ErrURL) {
			t.Errorf("ParseURL(%q) = %v", text, err)
		}
	}
}
