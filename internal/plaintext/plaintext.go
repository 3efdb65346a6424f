// Package plaintext finds settings that would send passwords and payloads over a network in the clear.
// Programs refuse such a setting unless [Flag] or [Variable] allows it. Connections over loopback or a Unix
// socket are allowed, because they do not leave this machine.
package plaintext

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/brokerurls"
)

// Flag is the flag that allows plaintext beyond this machine. The environment variable Variable gives its
// default.
const (
	Flag     = "allow-plaintext"
	Variable = "SAGAMILL_ALLOW_PLAINTEXT"
	Usage    = "allow connections without TLS to other machines; default: the environment variable " + Variable
)

// ErrRefused reports a setting that leads to another machine without TLS.
var ErrRefused = errors.New("plaintext beyond this machine is refused")

// Allowed returns the value of [Variable], and false if it is not set. An error names the variable.
func Allowed() (bool, error) {
	text := os.Getenv(Variable)
	if text == "" {
		return false, nil
	}
	allowed, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%s: %q is neither true nor false", Variable, text)
	}
	return allowed, nil
}

// Database returns an [ErrRefused] if conn, a URL or a connection string of PostgreSQL, allows a connection
// to another machine without TLS. One host of several is enough. The modes disable, allow and prefer, the
// default, allow such connections.
//
// Database does no I/O except to read what conn and the environment name, such as a service file. Any other
// error means that conn cannot be read. Errors do not repeat conn, because it may hold a password.
func Database(conn string) error {
	config, err := pgconn.ParseConfig(conn)
	if err != nil {
		return errors.New("it is not a PostgreSQL URL or connection string, or names a file that cannot be read")
	}
	ways := append([]*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port, TLSConfig: config.TLSConfig}}, config.Fallbacks...)
	for _, way := range ways {
		network, _ := pgconn.NetworkAddress(way.Host, way.Port)
		if way.TLSConfig == nil && network != "unix" && !Loopback(way.Host) {
			return fmt.Errorf("%w: the connection to %q may be without TLS; set sslmode=verify-full with sslrootcert, or give -%s", ErrRefused, way.Host, Flag)
		}
	}
	return nil
}

// Broker returns an [ErrRefused] if one of the AMQP URLs of list leads to another machine without TLS.
// [brokerurls.Split] splits the list. Broker ignores a URL that is not an AMQP URL: the client refuses it.
func Broker(list string) error {
	for _, at := range brokerurls.Split(list) {
		u, err := url.Parse(at)
		if err == nil && u.Scheme == "amqp" && u.Hostname() != "" && !Loopback(u.Hostname()) {
			return fmt.Errorf("%w: the connection to %q is without TLS; use amqps://, or give -%s", ErrRefused, u.Hostname(), Flag)
		}
	}
	return nil
}

// HTTP returns an [ErrRefused] if the HTTP URL at leads to another machine without TLS.
func HTTP(at string) error {
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "http" || Loopback(u.Hostname()) {
		return nil
	}
	return fmt.Errorf("%w: requests to %q are without TLS; use https://, or give -%s", ErrRefused, u.Hostname(), Flag)
}

// ListensHere reports whether only this machine can reach a listener at address, as host:port.
func ListensHere(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && Loopback(host)
}

// Loopback reports whether host, a name or an address, always means this machine. Localhost is the only such
// name: another name may lead to another machine later.
func Loopback(host string) bool {
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && address.Unmap().IsLoopback()
}
