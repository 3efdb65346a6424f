// Package browsertest opens the console in a real Chromium. It checks each page with a screen reader's rules, by keyboard
// and on a narrow screen. It solves six incidents of docs/runbook.md in the browser alone.
//
//	chromium_test.go   a browser of the test's own: it opens, clicks, types, waits, and notes each error of a page
//	town_test.go       services with real tables and messages, and a console in front of them
//	pages_test.go      every page, found by its links: axe-core, widths, keyboard, no JavaScript
//	incidents_test.go  six incidents, and what is in the tables in the end
//
// It is a separate module, because users of the library must not get the browser's modules among their requirements. It
// holds nothing but tests. With -shots DIR the incidents write their screenshots there.
package browsertest
