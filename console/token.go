package console

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"
)

// proposalAge is how long the preview of a change can be confirmed.
const proposalAge = 15 * time.Minute

// A proposal is what a form token says: a change as its preview showed it. The token is signed, so that a browser can
// confirm the change of a preview and no other one.
type proposal struct {
	ID      string               `json:"id"` // of the run that the token starts: two posts of one token are one run
	Kind    string               `json:"kind"`
	Params  string               `json:"params"` // encoded as a query
	Count   int                  `json:"count"`
	Moments map[string]time.Time `json:"moments"` // by place: the clock of its database before the preview
	Expires int64                `json:"expires"` // in seconds since 1970
}

// errToken reports a token that this console has not signed for this session and person, or that is too old.
var errToken = errors.New("console: the form is not valid any more")

// A signer signs what browsers send back. A signature holds for one purpose, one session and one person.
type signer struct{ secret []byte }

func (s signer) sign(purpose, session string, actor Actor, text string) string {
	mac := hmac.New(sha256.New, s.secret)
	for _, part := range []string{purpose, session, string(actor), text} {
		_ = json.NewEncoder(mac).Encode(part) // quoted, so that no part runs into the next
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// signProposal returns the form token of p.
func (s signer) signProposal(p proposal, session string, actor Actor) (string, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	body := base64.RawURLEncoding.EncodeToString(text)
	return body + "." + s.sign("change", session, actor, body), nil
}

// signRun returns a note as text. It is no right to do anything, so it is of no session and no person.
func (s signer) signRun(n runNote) (string, error) {
	text, err := json.Marshal(n)
	if err != nil {
		return "", err
	}
	body := base64.RawURLEncoding.EncodeToString(text)
	return body + "." + s.sign("run", "", "", body), nil
}

// readRun returns the note of a text. Its error is [errToken].
func (s signer) readRun(text string) (*runNote, error) {
	body, signature, _ := strings.Cut(text, ".")
	if !hmac.Equal([]byte(signature), []byte(s.sign("run", "", "", body))) {
		return nil, errToken
	}
	var n runNote
	data, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil || json.Unmarshal(data, &n) != nil {
		return nil, errToken
	}
	return &n, nil
}

// readProposal returns the proposal of a token. Its error is [errToken].
func (s signer) readProposal(token, session string, actor Actor, now time.Time) (p proposal, err error) {
	body, signature, _ := strings.Cut(token, ".")
	if session == "" || !hmac.Equal([]byte(signature), []byte(s.sign("change", session, actor, body))) {
		return p, errToken
	}
	text, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil || json.Unmarshal(text, &p) != nil || now.Unix() > p.Expires {
		return proposal{}, errToken
	}
	return p, nil
}

// postToken returns the token of forms that have no preview, such as that which pauses a run.
func (s signer) postToken(session string, actor Actor) string {
	return s.sign("post", session, actor, "")
}

// checkPostToken returns an [errToken] unless token is that of the session and the person.
func (s signer) checkPostToken(token, session string, actor Actor) error {
	if session == "" || !hmac.Equal([]byte(token), []byte(s.postToken(session, actor))) {
		return errToken
	}
	return nil
}
