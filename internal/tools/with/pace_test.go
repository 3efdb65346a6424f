package main

import (
	"strings"
	"testing"
)

// The tests of a run never need more connections than the server has: fewer packages run at once, or the run says at its
// start what is missing.
func TestChoosePace(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		free             int
		pace, says, fail string
	}{
		{397, "", "", ""},
		{twoPackages, "", "", ""},
		{95, "-p=1 -parallel=4", "has 95 of its 100 connections free: the tests run one package at a time (two at a time need 120)", ""},
		{onePackage, "-p=1 -parallel=4", "one package", ""},
		{onePackage - 1, "", "", "has 63 of its 100 connections free, and the tests need 64: restart it with max_connections=200"},
	} {
		pace, line, err := choosePace(tt.free, 100)
		if pace != tt.pace || !strings.Contains(line, tt.says) || (err != nil) != (tt.fail != "") {
			t.Errorf("choosePace(%d) = %q, %q, %v", tt.free, pace, line, err)
		}
		if err != nil && !strings.Contains(err.Error(), tt.fail) {
			t.Errorf("choosePace(%d): %v, want %q", tt.free, err, tt.fail)
		}
	}
}
