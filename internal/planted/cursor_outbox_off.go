//go:build !plant_cursor_outbox

package planted

const cursorOutbox = false
