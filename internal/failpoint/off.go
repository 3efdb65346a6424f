//go:build !failpoints

package failpoint

// Enabled tells a test whether the points are compiled in.
const Enabled = false

// Hit does nothing.
func Hit(string) error { return nil }
