package sqlschema

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// DefaultConnectionCheck is the default of an option ConnectionCheck.
const DefaultConnectionCheck = time.Second

// LimitIdle is a statement that frees the locks of its transaction if this process hangs for $1 milliseconds, or loses
// its connection while a statement runs. Without the second setting PostgreSQL would execute that statement to its end.
// The settings end with the transaction.
const LimitIdle = `SELECT set_config('idle_in_transaction_session_timeout', $1, true) || set_config('client_connection_check_interval', '{connection_check}', true)`

// BindConnectionCheck puts an option ConnectionCheck in the place of {connection_check}.
func BindConnectionCheck(statement string, check time.Duration) string {
	return strings.ReplaceAll(statement, "{connection_check}", strconv.FormatInt(max(0, check).Milliseconds(), 10))
}

// CheckConnectionCheck returns an error for an interval that PostgreSQL does not accept, or that it rounds to never.
func CheckConnectionCheck(check time.Duration) error {
	if check > math.MaxInt32*time.Millisecond || check >= 0 && check < time.Millisecond {
		return fmt.Errorf("option ConnectionCheck: %s is neither negative nor between 1 ms and %s", check, math.MaxInt32*time.Millisecond)
	}
	return nil
}
