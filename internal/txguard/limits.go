package txguard

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// DefaultConnectionCheck is the default of an option ConnectionCheck.
const DefaultConnectionCheck = time.Second

// SetConnectionCheck is an expression after which PostgreSQL checks the connection while it executes a statement. If the
// client is gone, PostgreSQL ends the statement; otherwise it would execute the statement to its end, with all locks. The
// setting ends with the transaction.
const SetConnectionCheck = `set_config('client_connection_check_interval', '{connection_check}', true) || ` + SetKeepalives

// SetKeepalives is an expression after which the server's kernel asks a client that says nothing for 2 s whether it is still
// there, and without an answer closes the connection 2 s later. Otherwise a transaction whose client is behind a broken
// path keeps its locks for as long as it may be idle, and the process that takes its work over waits for them. A client
// that is slow to read answers, and is not concerned; that is why tcp_user_timeout is left alone. The setting is the
// session's: to set it in each transaction cost a tenth of a short one. It stays as it is if it is as short already, or if
// there is no TCP connection. A pooler answers for its clients.
const SetKeepalives = `CASE WHEN current_setting('tcp_keepalives_idle')::int > 4
	THEN set_config('tcp_keepalives_idle', '2', false) || set_config('tcp_keepalives_interval', '1', false)
		|| set_config('tcp_keepalives_count', '2', false)
	ELSE '' END`

// LimitTransaction is a statement that limits its transaction. PostgreSQL frees the locks if this process does nothing in
// the transaction for $1 milliseconds, or if [SetConnectionCheck] finds that the process is gone. It also reads the [Role].
const LimitTransaction = `SELECT set_config('idle_in_transaction_session_timeout', $1, true) || ` + SetConnectionCheck + `, ` + Role

// BindConnectionCheck puts an option ConnectionCheck in the place of {connection_check}.
func BindConnectionCheck(statement string, check time.Duration) string {
	return strings.ReplaceAll(statement, "{connection_check}", strconv.FormatInt(max(0, check).Milliseconds(), 10))
}

// ValidateConnectionCheck returns an error for an interval that PostgreSQL does not accept, or that it rounds to never.
func ValidateConnectionCheck(check time.Duration) error {
	const most = math.MaxInt32 * time.Millisecond
	if check > most || check >= 0 && check < time.Millisecond {
		return fmt.Errorf("%s is neither negative nor between 1 ms and %s", check, most)
	}
	return nil
}
