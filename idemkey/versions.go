package idemkey

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// routeSettings are the fingerprint settings of all routes of one middleware, by label. A key that
// is reused on another route meets a record that the other route's settings have made.
type routeSettings struct {
	mu      sync.Mutex
	byLabel map[string]*fingerprinter
}

// addAll leaves Custom out: its Alg is not known before it is called.
func (s *routeSettings) addAll(o *Options) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range append([]*fingerprinter{o.current}, o.older...) {
		if f.label != "" {
			s.byLabel[f.label] = f
		}
	}
}

// find returns nil if no route has settings of that label.
func (s *routeSettings) find(label string) *fingerprinter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byLabel[label]
}

// fingerprintAs returns the request's fingerprints by the settings, other than the claim's, that
// can have made a record's of algorithm alg. It is called only where a record has such a one: the
// body is digested once more for each.
func (x *exchange) fingerprintAs(alg string) (made []Fingerprint, err error) {
	var settings []*fingerprinter
	for _, f := range x.m.opts.older {
		if f.mayHaveMade(alg) {
			settings = append(settings, f)
		}
	}
	if f := x.m.routes.find(alg); f != nil && !slices.ContainsFunc(settings, func(g *fingerprinter) bool { return g.label == alg }) {
		settings = append(settings, f)
	}
	for _, f := range settings {
		fp, failed := f.of(x.withBody(x.r.Context()), x.body) // a Custom may read the request
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		made = append(made, fp)
	}
	return made, err
}

// errUnknownFingerprint is for the log: it is the service that lacks something, not its client.
func (x *exchange) errUnknownFingerprint(d Decision) error {
	err := fmt.Errorf("idemkey: the key's record was made with fingerprint settings %q, and this process has %q: "+
		"add the former to Options.Fingerprint.Versions for Limits.TTL", d.FPAlg, x.claim.FP.Alg)
	return errors.Join(err, x.olderErr)
}
