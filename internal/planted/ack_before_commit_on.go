//go:build plant_ack_before_commit

package planted

const ackBeforeCommit = true
