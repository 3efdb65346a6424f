package brokerurls

import (
	"slices"
	"strings"
	"testing"
)

func TestSplit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, list string
		want       []string
	}{
		{"one", "amqp://u:p@a:5672/vh", []string{"amqp://u:p@a:5672/vh"}},
		{"none", "", []string{""}},
		{"not AMQP", "inproc:", []string{"inproc:"}},
		{"two", "amqp://u:p@a/vh,amqp://u:p@b/vh", []string{"amqp://u:p@a/vh", "amqp://u:p@b/vh"}},
		{"without a path", "amqp://u:p@a:5672,amqps://u:p@b", []string{"amqp://u:p@a:5672", "amqps://u:p@b"}},
		{"blanks", " amqp://a , amqp://b\n,\tamqp://c ", []string{"amqp://a", "amqp://b", "amqp://c"}},
		{"capitals", "amqp://a,AMQP://b,AmqpS://c", []string{"amqp://a", "AMQP://b", "AmqpS://c"}},
		{"comma in a password", "amqp://u:p,amqp@a/vh,amqp://u:,p@b/vh", []string{"amqp://u:p,amqp@a/vh", "amqp://u:,p@b/vh"}},
		{"comma at the end", "amqp://a/,", []string{"amqp://a/,"}},
		{"comma twice", "amqp://a/,,amqp://b/", []string{"amqp://a/,", "amqp://b/"}},
		{"comma at the start", ",amqp://b/", []string{"", "amqp://b/"}},
		{"another scheme", "amqp://a/,http://b/", []string{"amqp://a/,http://b/"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := Split(tt.list); !slices.Equal(got, tt.want) {
				t.Errorf("Split(%q) = %q, want %q", tt.list, got, tt.want)
			}
		})
	}
}

// Nothing of a list is lost, and what was split once is not split further.
func FuzzSplit(f *testing.F) {
	f.Add("amqp://u:p@a:5672/vh, amqps://u:,p@b/vh")
	f.Add(",AMQP://,,amqp://")
	f.Fuzz(func(t *testing.T, list string) {
		urls := Split(list)
		var bytes []string
		for _, url := range urls {
			if again := Split(url); len(again) != 1 || again[0] != url {
				t.Errorf("Split(%q) = %q, and its part %q is split into %q", list, urls, url, again)
			}
			bytes = append(bytes, strings.Trim(url, blanks))
		}
		without := func(s string) string { return strings.Map(dropBlanks, s) }
		if got, want := without(strings.Join(bytes, ",")), without(list); got != want {
			t.Errorf("Split(%q) joined is %q, want %q", list, got, want)
		}
	})
}

func dropBlanks(r rune) rune {
	if strings.ContainsRune(blanks, r) {
		return -1
	}
	return r
}
