// Package sagastorm holds the tests of what package saga promises that need
// processes to die: on a real broker and a real database, with orchestrators and
// participants that are killed, stopped, cut off and restarted. It has no code.
//
// What must hold, whatever strikes:
//
//   - every instance ends, or is stuck with a reason, and only where the storm has
//     given a step an outcome that leads there;
//   - a step that the machine takes for done was done once and is not undone; of one
//     that it takes for undone, rejected or skipped nothing is left;
//   - no step is done or undone twice, undone without having been done, or done
//     after it was undone;
//   - steps are done in the order of the plan and undone in the reverse;
//   - once the pivot is done, nothing is undone;
//   - no message of an orchestrator becomes a dead letter.
//
// Longer runs:
//
//	go test -race -tags=failpoints -count=1 -timeout=30m -v ./internal/suites/sagastorm -storm.rounds=50
//
// The seed that is printed fixes what strikes and what steps come to, not how it
// interleaves: -storm.seed=N repeats it.
package sagastorm
