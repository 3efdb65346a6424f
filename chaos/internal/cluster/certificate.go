package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"time"
)

// A certificate is the self-signed certificate of all nodes.
type certificate struct {
	chain, key []byte // in PEM
	trusted    *x509.CertPool
}

// newCertificate makes one for the name localhost that is valid longer than any run.
func newCertificate() (*certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	c := &certificate{
		chain:   pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:     pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		trusted: x509.NewCertPool(),
	}
	c.trusted.AppendCertsFromPEM(c.chain)
	return c, nil
}

// clientConfig returns the settings of a client that trusts only this certificate.
func (c *certificate) clientConfig() *tls.Config { return &tls.Config{RootCAs: c.trusted} }
