//go:build plant_forward_order_compensation

package planted

const forwardOrderCompensation = true
