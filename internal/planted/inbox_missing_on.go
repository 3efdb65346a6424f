//go:build plant_inbox_missing

package planted

const inboxMissing = true
