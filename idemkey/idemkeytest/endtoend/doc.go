// Package endtoend tests the stores from outside: services in processes of their
// own, that are killed, stopped and cut off, as their HTTP clients see them. A
// handler asks the test before it goes on, so that nothing depends on time.
package endtoend
