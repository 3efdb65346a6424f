// Package plaintext says which settings would send passwords and payloads over a
// network in the clear. Programs refuse those unless they are told otherwise; on
// this machine, over loopback or a Unix socket, nobody listens in.
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

// Flag is the flag that allows it, and Variable the environment variable that gives
// the flag its default.
const (
	Flag     = "allow-plaintext"
	Variable = "SAGAMILL_ALLOW_PLAINTEXT"
	Usage    = "allow connections without TLS beyond this machine; also by " + Variable
)

// ErrRefused reports a setting that would lead out of this machine without TLS.
var ErrRefused = errors.New("plaintext beyond this machine is refused")

// Allowed returns what the environment says. An error names [Variable].
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

// Database returns an [ErrRefused] if a connection to the PostgreSQL of conn, a URL
// or a connection string, may be without TLS: one host of several is enough, and so
// are the modes disable, allow and prefer, the last of which is the default. It does no
// I/O but to read what conn and the environment name, such as a service file. Another error means
// that conn cannot be read. Neither repeats conn, which may hold a password.
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

// Broker returns an [ErrRefused] if one of the AMQP URLs of list, which
// [brokerurls.Split] splits, leads out of this machine without TLS. A URL that is
// not one of AMQP is for others to refuse.
func Broker(list string) error {
	for _, at := range brokerurls.Split(list) {
		u, err := url.Parse(at)
		if err == nil && u.Scheme == "amqp" && u.Hostname() != "" && !Loopback(u.Hostname()) {
			return fmt.Errorf("%w: the connection to %q is without TLS; use amqps://, or give -%s", ErrRefused, u.Hostname(), Flag)
		}
	}
	return nil
}

// HTTP returns an [ErrRefused] if the HTTP URL at leads out of this machine without
// TLS.
func HTTP(at string) error {
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "http" || Loopback(u.Hostname()) {
		return nil
	}
	return fmt.Errorf("%w: requests to %q are without TLS; use https://, or give -%s", ErrRefused, u.Hostname(), Flag)
}

// ListensHere reports whether a listener at address, as host:port, is reached from this
// machine alone.
func ListensHere(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && Loopback(host)
}

// Loopback reports whether host, a name or an address, is this machine and no other.
// Only localhost is known by name: what another name stands for may change.
func Loopback(host string) bool {
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && address.Unmap().IsLoopback()
}
