//go:build plant_mark_before_confirm

package planted

const markBeforeConfirm = true
