//go:build plant_inbox_in_another_transaction

package planted

const inboxInAnotherTransaction = true
