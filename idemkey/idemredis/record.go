package idemredis

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// maxStatus is the greatest HTTP status.
const maxStatus = 999

// A storedRecord is a record as it was read, with what names its owner.
type storedRecord struct {
	idemkey.Record
	token  string
	header []byte
	over   time.Duration // since its lease has ended
}

// A wonClaim is the reply to a claim that was won: 1, attempt, expires_at, incarnation.
type wonClaim struct {
	attempt     int
	expires     time.Time
	incarnation string
}

func decodeClaim(reply []any) (c wonClaim, won bool) {
	if len(reply) != 4 || reply[0] != int64(1) {
		return c, false
	}
	attempt, ok := reply[1].(int64)
	expires, ok2 := reply[2].(int64)
	incarnation, ok3 := reply[3].(string)
	return wonClaim{int(attempt), expiryOf(expires), incarnation}, ok && ok2 && ok3
}

// maxAge is more than any record's age that matters, in milliseconds.
const maxAge = int64(100 * 365 * 24 * time.Hour / time.Millisecond)

// expiryOf returns the time of ms since 1970, zero for never.
func expiryOf(ms int64) time.Time {
	if ms == never {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// decodeRecord reads the reply of luaRead. A hash that this package's scripts cannot have
// written is [idemkey.ErrRecordCorrupt].
func decodeRecord(reply []any) (*storedRecord, error) {
	const fields = 16
	if len(reply) != fields || reply[0] != int64(0) {
		return nil, errReply
	}
	d := fieldDecoder{reply: reply}
	rec := &storedRecord{
		Record: idemkey.Record{
			State:     idemkey.State(d.readNumber(1, math.MaxUint8)),
			FP:        idemkey.Fingerprint{Sum: []byte(d.readText(2)), Alg: d.readText(3)},
			Attempt:   d.readNumber(5, math.MaxInt32),
			Run:       d.readText(4),
			LeaseLeft: time.Duration(d.readInteger(6)) * time.Millisecond,
			ExpiresAt: expiryOf(d.readInteger(7)),
			Age:       time.Duration(min(d.readInteger(13), maxAge)) * time.Millisecond,
		},
		token: d.readText(4),
		over:  time.Duration(min(d.readInteger(14), maxAge)) * time.Millisecond,
	}
	rec.Decided = d.readInteger(15) == 1
	if !rec.ExpiresAt.IsZero() {
		rec.LifeLeft = time.Duration(d.readInteger(8)) * time.Millisecond
		rec.Expired = rec.LifeLeft == 0
	}
	switch rec.State {
	case idemkey.StateInProgress:
	case idemkey.StateFailed, idemkey.StateUnknown:
		rec.Response.Status = d.readNumber(9, maxStatus)
	case idemkey.StateCompleted, idemkey.StateTombstone:
		rec.Response.Status = d.readNumber(9, maxStatus)
		rec.Response.Dropped = rec.State == idemkey.StateTombstone
		rec.header = []byte(d.readText(10))
		if !rec.Response.Dropped {
			rec.Response.Body = []byte(d.readText(11))
			rec.Response.KeyID = d.readText(12)
		}
	}
	if d.bad || rec.token == "" {
		return nil, fmt.Errorf("%w: the hash lacks a field", idemkey.ErrRecordCorrupt)
	}
	if err := rec.Check(); err != nil {
		return nil, err
	}
	return rec, nil
}

// decisionOf makes a decision of kind, with the response if the decision is a replay.
func (r *storedRecord) decisionOf(kind idemkey.Kind) (idemkey.Decision, error) {
	switch kind {
	case idemkey.KindInFlight:
		return idemkey.Decision{Kind: kind, RetryAfter: r.LeaseLeft}, nil
	case idemkey.KindReplay, idemkey.KindNotRetained:
		if err := r.Response.UnmarshalHeader(r.header); err != nil {
			return idemkey.Decision{}, err
		}
		return idemkey.Decision{Kind: kind, Record: &r.Record}, nil
	case idemkey.KindUnknown:
		return idemkey.Decision{Kind: kind, Attempt: r.Attempt, Run: r.Run}, nil
	case idemkey.KindFingerprintUnknown:
		return idemkey.Decision{Kind: kind, FPAlg: r.FP.Alg}, nil
	}
	return idemkey.Decision{Kind: kind}, nil
}

// A fieldDecoder reads the elements of a reply. It is bad once one of them has a
// wrong type or value.
type fieldDecoder struct {
	reply []any
	bad   bool
}

func (d *fieldDecoder) readText(i int) string {
	s, ok := d.reply[i].(string)
	d.bad = d.bad || !ok
	return s
}

// readNumber reads a field of the hash.
func (d *fieldDecoder) readNumber(i, limit int) int {
	n, err := strconv.Atoi(d.readText(i))
	d.bad = d.bad || err != nil || n < 0 || n > limit
	return n
}

// readInteger reads a number that the script has computed.
func (d *fieldDecoder) readInteger(i int) int64 {
	n, ok := d.reply[i].(int64)
	d.bad = d.bad || !ok
	return n
}
