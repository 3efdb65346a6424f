//go:build plant_safe_to_retry

package planted

const safeToRetry = true
