package txguard

import (
	"errors"
	"slices"
	"strings"
)

// ErrSession reports a statement that would change a setting of the session. The session serves other messages and
// requests afterwards. The statement was not sent.
var ErrSession = errors.New("a setting would stay on the pooled session, for all handlers after this one: write SET LOCAL, or set_config(…, true), which end with the transaction")

// ChangesSession reports whether one of the statements in sql would change a setting of the session for longer than the
// transaction: SET without LOCAL, or set_config with the literal false. It does not look into functions. RESET is not
// among them, since it undoes.
func ChangesSession(sql string) bool {
	if !mayChangeSession(sql) {
		return false
	}
	for rest := sql; rest != ""; {
		var words []string
		if words, rest = nextStatement(rest); setsSession(words) {
			return true
		}
	}
	return callsSetConfig(sql)
}

// mayChangeSession is quick, for the many statements that have no such word.
func mayChangeSession(sql string) bool {
	for i := range len(sql) - 2 {
		if sql[i]|0x20 == 's' && sql[i+1]|0x20 == 'e' && sql[i+2]|0x20 == 't' {
			return true
		}
	}
	return false
}

// setsSession reports whether a statement that begins with words is a SET without LOCAL. SET TRANSACTION and SET
// CONSTRAINTS end with the transaction as well.
func setsSession(words []string) bool {
	if len(words) == 0 || !strings.EqualFold(words[0], "SET") {
		return false
	}
	local := []string{"LOCAL", "TRANSACTION", "CONSTRAINTS"}
	return len(words) < 2 || !slices.Contains(local, strings.ToUpper(words[1]))
}

// callsSetConfig reports whether sql calls set_config with false as its last argument.
func callsSetConfig(sql string) bool {
	depths := []int{} // of the parentheses of such calls that are open
	depth, called, last := 0, false, ""
	for i := 0; i < len(sql); {
		token := sql[i : i+tokenLength(sql[i:])]
		i += len(token)
		switch {
		case strings.TrimSpace(token) == "" || strings.HasPrefix(token, "--") || strings.HasPrefix(token, "/*"):
			continue
		case token == "(":
			depth++
			if called {
				depths = append(depths, depth)
			}
		case token == ")":
			if n := len(depths); n > 0 && depths[n-1] == depth {
				if depths = depths[:n-1]; isFalse(last) {
					return true
				}
			}
			depth--
		}
		called, last = strings.EqualFold(token, "set_config"), token
	}
	return false
}

func isFalse(token string) bool {
	return slices.Contains([]string{"false", "'false'", "'f'", "'off'", "'no'", "'0'"}, strings.ToLower(token))
}
