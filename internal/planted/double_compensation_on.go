//go:build plant_double_compensation

package planted

const doubleCompensation = true
