// Package sagastorm tests the promises of package saga that need processes to die, on a real broker and a
// real database. Its orchestrators and participants are killed, stopped, cut off and restarted. It has no
// code.
//
// After every fault these must hold:
//
//   - every instance ends, or is stuck or held with a reason, and only where the storm
//     has given a step an outcome that leads there;
//   - a step that the machine takes for done was done once and is not undone; a step
//     that it takes for undone, rejected or skipped has left no effect;
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
// -storm.seed=N repeats a run. The seed, which each run prints, fixes the faults and the outcomes of steps,
// but not how they interleave.
package sagastorm
