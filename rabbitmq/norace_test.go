//go:build !race

package rabbitmq_test

// raceDetector reports whether this program was built with it.
const raceDetector = false
