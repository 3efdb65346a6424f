// Package brokerurls splits a list of AMQP URLs. The rabbitmq package, the commands and
// their checks must agree about where one URL ends and the next begins: a check that
// splits differently would pass an address that is dialled later.
package brokerurls

import "strings"

// blanks may surround the URLs of a list.
const blanks = " \t\r\n"

// Split returns the URLs of list, which are separated by commas, without the blanks around
// them. Only a comma that amqp:// or amqps:// follows separates, because a password may hold
// a comma. A list without such a comma is returned as one element, even if that is no URL.
func Split(list string) []string {
	var urls []string
	rest := 0
	for i := range len(list) {
		if list[i] == ',' && beginsURL(strings.TrimLeft(list[i+1:], blanks)) {
			urls = append(urls, strings.Trim(list[rest:i], blanks))
			rest = i + 1
		}
	}
	return append(urls, strings.Trim(list[rest:], blanks))
}

// beginsURL ignores the case of the scheme, as the parsers of URLs do.
func beginsURL(s string) bool {
	for _, scheme := range []string{"amqp://", "amqps://"} {
		if len(s) >= len(scheme) && strings.EqualFold(s[:len(scheme)], scheme) {
			return true
		}
	}
	return false
}
