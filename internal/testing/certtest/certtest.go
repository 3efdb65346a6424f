// Package certtest gives each test a private certificate authority.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// An Authority signs certificates for a day.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority returns a new authority, which no program trusts yet.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{}
	a.certificate, a.key = a.sign(t, &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "authority of a test"},
		NotAfter: time.Now().Add(24 * time.Hour),
	})
	return a
}

// sign signs template: with the new key itself, if a has none yet.
func (a *Authority) sign(t testing.TB, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = time.Now().Add(-time.Hour)
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

// PEM returns the authority's certificate.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}

// Pool returns a pool with the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// Issue returns a certificate and its key in PEM, for clients, and for servers of the name localhost. The
// certificate expires after life; if life is negative, it has expired.
func (a *Authority) Issue(t testing.TB, life time.Duration) (certificate, key []byte) {
	t.Helper()
	return a.IssueTo(t, "", life)
}

// IssueTo is [Authority.Issue] with a common name.
func (a *Authority) IssueTo(t testing.TB, name string, life time.Duration) (certificate, key []byte) {
	t.Helper()
	signed, private := a.sign(t, &x509.Certificate{
		Subject:  pkix.Name{CommonName: name},
		DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(life),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed.Raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Pair is [Authority.Issue] for crypto/tls.
func (a *Authority) Pair(t testing.TB, life time.Duration) tls.Certificate {
	t.Helper()
	return a.PairTo(t, "", life)
}

// PairTo is [Authority.Pair] with a common name.
func (a *Authority) PairTo(t testing.TB, name string, life time.Duration) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(a.IssueTo(t, name, life))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// Files are the files of a client. They are removed when the test ends.
type Files struct{ Authority, Certificate, Key string }

// Files writes the authority's certificate, and one of [Authority.Issue] with its key.
func (a *Authority) Files(t testing.TB, life time.Duration) Files {
	t.Helper()
	return a.FilesTo(t, "", life)
}

// FilesTo is [Authority.Files] with a common name.
func (a *Authority) FilesTo(t testing.TB, name string, life time.Duration) Files {
	t.Helper()
	certificate, key := a.IssueTo(t, name, life)
	dir := t.TempDir()
	f := Files{filepath.Join(dir, "authority.pem"), filepath.Join(dir, "certificate.pem"), filepath.Join(dir, "key.pem")}
	for name, content := range map[string][]byte{f.Authority: a.PEM(), f.Certificate: certificate, f.Key: key} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// OldServer listens, speaks TLS 1.1 at most, and calls hello before each handshake, if hello is not nil. It
// returns the port.
func OldServer(t testing.TB, a *Authority, hello func(net.Conn) error) string {
	t.Helper()
	settings := &tls.Config{Certificates: []tls.Certificate{a.Pair(t, time.Hour)}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				if hello == nil || hello(conn) == nil {
					_ = tls.Server(conn, settings).Handshake() // the test looks at the client's error
				}
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
