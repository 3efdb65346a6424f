//go:build !plant_nack_requeue

package planted

const nackRequeue = false
