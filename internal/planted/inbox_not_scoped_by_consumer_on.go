//go:build plant_inbox_not_scoped_by_consumer

package planted

const inboxNotScopedByConsumer = true
