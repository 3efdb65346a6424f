package idemkey

import (
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// A Sealer encrypts the bodies of stored responses. Headers and status stay
// readable: stores and operators need them. What aad holds, the record's
// identity and fingerprint algorithm, must be authenticated: a body that was
// copied to another record must not open.
type Sealer interface {
	// Seal returns the sealed body and the name of the key, not empty, that opens it.
	Seal(body, aad []byte) (sealed []byte, keyID string, err error)
	// Open returns the body that was sealed with the key called keyID.
	Open(sealed, aad []byte, keyID string) ([]byte, error)
}

// An AEADSealer is a [Sealer] with keys in memory. To rotate, add a key to
// Keys everywhere, then name it in Current, and drop the old one a TTL later.
type AEADSealer struct {
	Current string // seals
	Keys    map[string]cipher.AEAD
}

// Seal puts a random nonce in front of the sealed body.
func (s *AEADSealer) Seal(body, aad []byte) ([]byte, string, error) {
	key := s.Keys[s.Current]
	if key == nil || s.Current == "" {
		return nil, "", errors.New("idemkey: AEADSealer.Current names no key")
	}
	nonce := make([]byte, key.NonceSize(), key.NonceSize()+len(body)+key.Overhead())
	rand.Read(nonce) // never fails
	return key.Seal(nonce, nonce, body, aad), s.Current, nil
}

// Open reverses Seal.
func (s *AEADSealer) Open(sealed, aad []byte, keyID string) ([]byte, error) {
	key := s.Keys[keyID]
	if key == nil {
		return nil, errors.New("idemkey: no key of that name")
	}
	if len(sealed) < key.NonceSize() {
		return nil, errors.New("idemkey: sealed body is too short")
	}
	return key.Open(nil, sealed[:key.NonceSize()], sealed[key.NonceSize():], aad)
}

// sealedData binds a sealed body to its record. Lengths stand in front, so that
// no two identities come out the same.
func sealedData(id Identity, alg string) []byte {
	var out []byte
	for _, part := range []string{"idemkey body 1", id.Namespace, id.Scope, id.Key, alg} {
		out = appendString(out, part)
	}
	return out
}

// stored returns what the store is to keep of r, which stays as it is. Where the headers
// cannot be stored it is a tombstone: a replay must have them. After an error, which is the
// Sealer's, it is one too.
func (x *exchange) stored(r *Response) (Response, error) {
	o, s := x.m.opts, r.clone()
	if o.Response.Redact != nil {
		o.Response.Redact(x.r, &s)
		maps.DeleteFunc(s.Header, func(name string, _ []string) bool { return neverStored(name) })
	}
	if o.Response.NoStoreBody {
		s.Body, s.Dropped = nil, true
	}
	if _, err := s.MarshalHeader(); err != nil { // no reason to fail, or to run again
		x.event.Oversize = true
		x.note(err)
		s.Header, s.Body, s.Dropped = nil, nil, true
	}
	if o.Response.Sealer == nil || s.Dropped {
		return s, nil
	}
	sealed, keyID, err := o.Response.Sealer.Seal(s.Body, sealedData(x.claim.ID, x.claim.FP.Alg))
	if err == nil && keyID == "" {
		err = errors.New("idemkey: Sealer gave no key id")
	}
	if err != nil {
		err = fmt.Errorf("idemkey: seal response: %w", err)
		x.note(err)
		s.Body, s.Dropped = nil, true
		return s, err
	}
	s.Body, s.KeyID = sealed, keyID
	return s, nil
}

// opened returns the response of rec as it was before it was sealed.
func (x *exchange) opened(rec *Record) (Response, error) {
	r := rec.Response
	if r.KeyID == "" {
		return r.clone(), nil // from before there was a Sealer
	}
	if x.m.opts.Response.Sealer == nil {
		return r, fmt.Errorf("%w: sealed, and there is no Sealer", ErrRecordCorrupt)
	}
	body, err := x.m.opts.Response.Sealer.Open(slices.Clone(r.Body), sealedData(x.claim.ID, rec.FP.Alg), r.KeyID)
	if err != nil {
		return r, fmt.Errorf("%w: open: %w", ErrRecordCorrupt, err)
	}
	c := r.clone()
	c.Body, c.KeyID = body, ""
	return c, nil
}
