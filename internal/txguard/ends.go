package txguard

import "strings"

// Ends reports whether one of the statements in sql would end the transaction
// that it is sent in: COMMIT and END, ROLLBACK and ABORT unless it is TO a
// savepoint, PREPARE TRANSACTION. It errs on the safe side, as with a function whose
// body is BEGIN ATOMIC … END. It need not look into functions and procedures: they
// cannot end a transaction that their caller has begun.
func Ends(sql string) bool {
	for sql != "" {
		words, rest := nextStatement(sql)
		if endsTransaction(words) {
			return true
		}
		sql = rest
	}
	return false
}

// leading is the number of words that identify a statement.
const leading = 3

func endsTransaction(words []string) bool {
	word := func(i int) string {
		if i < len(words) {
			return strings.ToUpper(words[i])
		}
		return ""
	}
	switch word(0) {
	case "COMMIT", "END", "ABORT":
		return true
	case "ROLLBACK":
		to := 1
		if next := word(1); next == "WORK" || next == "TRANSACTION" {
			to = 2
		}
		return word(to) != "TO"
	case "PREPARE":
		return word(1) == "TRANSACTION"
	}
	return false
}

// nextStatement returns the leading words of the first statement of sql, and what
// follows its semicolon.
func nextStatement(sql string) (words []string, rest string) {
	for i := 0; i < len(sql); {
		switch n := tokenLength(sql[i:]); {
		case sql[i] == ';':
			return words, sql[i+1:]
		case isWordByte(sql[i]) && len(words) < leading:
			words = append(words, sql[i:i+n])
			i += n
		default:
			i += n
		}
	}
	return words, ""
}

// tokenLength returns the length of the first token of sql: a word, a comment, a string, a
// quoted name, or one other character.
func tokenLength(sql string) int {
	switch {
	case strings.HasPrefix(sql, "--"):
		return lengthUntil(sql, 2, "\n")
	case strings.HasPrefix(sql, "/*"):
		return commentLength(sql)
	case sql[0] == '\'':
		return quotedLength(sql, '\'', false)
	case sql[0] == '"':
		return quotedLength(sql, '"', false)
	case (sql[0] == 'e' || sql[0] == 'E') && len(sql) > 1 && sql[1] == '\'':
		return 1 + quotedLength(sql[1:], '\'', true)
	case sql[0] == '$':
		return dollarLength(sql)
	case isWordByte(sql[0]):
		n := 1
		for n < len(sql) && (isWordByte(sql[n]) || sql[n] == '$') {
			n++
		}
		return n
	}
	return 1
}

func isWordByte(c byte) bool {
	return c == '_' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// lengthUntil returns the offset behind the first end at or after from, and len(sql) if there is none.
func lengthUntil(sql string, from int, end string) int {
	if i := strings.Index(sql[from:], end); i >= 0 {
		return from + i + len(end)
	}
	return len(sql)
}

// commentLength returns the length of a comment, which may hold others.
func commentLength(sql string) int {
	for i, depth := 0, 0; i < len(sql); {
		switch {
		case strings.HasPrefix(sql[i:], "/*"):
			depth++
			i += 2
		case strings.HasPrefix(sql[i:], "*/"):
			depth--
			i += 2
		default:
			i++
		}
		if depth == 0 {
			return i
		}
	}
	return len(sql)
}

// quotedLength returns the length of a string or name. A doubled quote ends one string and begins the next:
// the two have the right length together.
func quotedLength(sql string, quote byte, escapes bool) int {
	for i := 1; i < len(sql); i++ {
		switch {
		case escapes && sql[i] == '\\':
			i++
		case sql[i] == quote:
			return i + 1
		}
	}
	return len(sql)
}

// dollarLength returns the length of a dollar-quoted string, or that of a lone dollar.
func dollarLength(sql string) int {
	n := 1
	for n < len(sql) && isWordByte(sql[n]) {
		n++
	}
	if n == len(sql) || sql[n] != '$' || n > 1 && '0' <= sql[1] && sql[1] <= '9' {
		return 1
	}
	return lengthUntil(sql, n+1, sql[:n+1])
}
