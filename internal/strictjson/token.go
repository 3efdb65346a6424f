package strictjson

import "bytes"

// A Tokenizer splits a JSON document into tokens. It does not validate: of data that is not JSON it may
// return any tokens, but it returns each byte that is not white space once and in order. Callers let
// encoding/json judge the same data. The zero value has no tokens.
type Tokenizer struct{ rest []byte }

// NewTokenizer returns a Tokenizer of data, which must not change until the last token was used.
func NewTokenizer(data []byte) Tokenizer { return Tokenizer{data} }

// Next returns the next token: one of { } [ ] : and the comma, a string with its quotes, or a number or
// a word as it is spelled. The token is a part of the data, and empty at the end.
func (t *Tokenizer) Next() []byte {
	for i, b := range t.rest {
		switch b {
		case ' ', '\t', '\n', '\r':
			continue
		case '{', '}', '[', ']', ':', ',':
			return t.take(i, i+1)
		case '"':
			return t.take(i, stringEnd(t.rest, i))
		}
		return t.take(i, wordEnd(t.rest, i))
	}
	t.rest = nil
	return nil
}

// take returns the token at [start, end) and moves behind it.
func (t *Tokenizer) take(start, end int) []byte {
	token := t.rest[start:end]
	t.rest = t.rest[end:]
	return token
}

// stringEnd returns the position behind the string that begins at start, and len(data) if the string is
// not closed. A quote closes it if an even number of backslashes precedes the quote, since each pair of
// them is one escaped backslash.
func stringEnd(data []byte, start int) int {
	for end := start + 1; ; {
		n := bytes.IndexByte(data[end:], '"')
		if n < 0 {
			return len(data)
		}
		text := data[start+1 : end+n]
		end += n + 1
		if slashes := len(text) - len(bytes.TrimRight(text, `\`)); slashes%2 == 0 {
			return end
		}
	}
}

// wordEnd returns the position behind the number or the word that begins at start.
func wordEnd(data []byte, start int) int {
	for i := start; i < len(data); i++ {
		switch data[i] {
		case ' ', '\t', '\n', '\r', '{', '}', '[', ']', ':', ',', '"':
			return i
		}
	}
	return len(data)
}
