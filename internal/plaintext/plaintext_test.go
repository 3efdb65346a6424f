package plaintext

import (
	"errors"
	"strings"
	"testing"
)

// secret is the password in every URL of the tests.
const secret = "hunter2"

func TestPlaintextDatabase(t *testing.T) {
	for name, tt := range map[string]struct {
		conn string
		mode string // PGSSLMODE
		want bool   // refused
	}{
		"loopback":                        {conn: "postgres://u:hunter2@127.0.0.1/x"},
		"loopback, disable":               {conn: "postgres://u:hunter2@127.0.0.1/x?sslmode=disable"},
		"another loopback":                {conn: "postgres://u:hunter2@127.8.9.1/x"},
		"IPv6 loopback":                   {conn: "postgres://u:hunter2@[::1]:5433/x?sslmode=disable"},
		"localhost":                       {conn: "postgres://u:hunter2@localhost/x"},
		"Unix socket":                     {conn: "host=/run/postgresql user=u password=hunter2 sslmode=disable"},
		"Unix socket in a URL":            {conn: "postgres://u:hunter2@/x?host=/run/postgresql"},
		"default mode":                    {conn: "postgres://u:hunter2@db.example/x", want: true},
		"disable":                         {conn: "postgres://u:hunter2@db.example/x?sslmode=disable", want: true},
		"allow":                           {conn: "postgres://u:hunter2@db.example/x?sslmode=allow", want: true},
		"prefer":                          {conn: "postgres://u:hunter2@db.example/x?sslmode=prefer", want: true},
		"require":                         {conn: "postgres://u:hunter2@db.example/x?sslmode=require"},
		"verify-full":                     {conn: "postgres://u:hunter2@db.example/x?sslmode=verify-full"},
		"verify-full in a string":         {conn: "host=db.example user=u password=hunter2 sslmode=verify-full"},
		"default mode in a string":        {conn: "host=db.example user=u password=hunter2", want: true},
		"mode of the environment":         {conn: "postgres://u:hunter2@db.example/x", mode: "require"},
		"weaker than the environment":     {conn: "postgres://u:hunter2@db.example/x?sslmode=prefer", mode: "require", want: true},
		"two hosts":                       {conn: "postgres://u:hunter2@127.0.0.1,db.example/x", want: true},
		"two hosts, require":              {conn: "postgres://u:hunter2@db.example,db2.example/x?sslmode=require"},
		"two hosts, a socket":             {conn: "host=/run/postgresql,10.0.0.7 user=u password=hunter2 sslmode=disable", want: true},
		"loopback by name of another":     {conn: "postgres://u:hunter2@localhost.example/x", want: true},
		"an address of all":               {conn: "postgres://u:hunter2@0.0.0.0/x", want: true},
		"settings of a pool":              {conn: "postgres://u:hunter2@db.example/x?sslmode=require&pool_max_conns=3"},
		"a private network is a network":  {conn: "postgres://u:hunter2@192.168.1.2/x", want: true},
		"link-local, with its zone, also": {conn: "postgres://u:hunter2@[fe80::1%25eth0]/x", want: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PGSSLMODE", tt.mode)
			check(t, Database(tt.conn), tt.want, "sslmode=verify-full")
		})
	}
	if err := Database("postgres://u:hunter2@h:port/x"); err == nil || errors.Is(err, ErrRefused) || strings.Contains(err.Error(), secret) {
		t.Errorf("Database of no URL = %v, want another error without the password", err)
	}
}

func TestPlaintextBroker(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]bool{
		"amqp://u:hunter2@127.0.0.1:5672/":                              false,
		"amqp://u:hunter2@localhost/":                                   false,
		"amqp://u:hunter2@[::1]:5672/vhost":                             false,
		"amqp://u:hunter2@[::ffff:127.0.0.1]/":                          false,
		"amqp:///":                                                      false, // the library's default is localhost
		"amqps://u:hunter2@mq.example/":                                 false,
		"inproc:":                                                       false,
		"amqp://u:hunter2@mq.example/":                                  true,
		"AMQP://u:hunter2@mq.example/":                                  true,
		"amqp://u:hunter2@10.1.2.3:5672/":                               true,
		"amqp://127.0.0.1:hunter2@mq.example/":                          true, // the user's name is no host
		"amqp://u:hunter2@127.0.0.1.mq.example/":                        true,
		"amqp://u:hunter2@mq.example/127.0.0.1":                         true,
		"amqp://u:hunter2@mq.example/?x=127.0.0.1":                      true,
		"amqp://u:hunter2@127.0.0.1/, amqps://u:hunter2@mq.example/":    false,
		"amqp://u:hunter2@127.0.0.1/,amqp://u:hunter2@mq.example/":      true,
		"amqps://u:hunter2@mq.example/ ,\tAMQP://u:hunter2@mq.example/": true,
		"amqp://u:hunter2@127.0.0.1/x,amqp@mq.example/":                 false, // one URL
	} {
		t.Run(at, func(t *testing.T) { t.Parallel(); check(t, Broker(at), want, "amqps://") })
	}
}

func TestPlaintextHTTP(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]bool{
		"http://127.0.0.1:8080": false, "https://pay.example": false, "http://localhost": false, "http://u:hunter2@pay.example/x": true, "": false,
	} {
		check(t, HTTP(at), want, "https://")
	}
}

func TestPlaintextVariable(t *testing.T) {
	for text, want := range map[string]bool{"": false, "true": true, "1": true, "false": false} {
		t.Setenv(Variable, text)
		if got, err := Allowed(); got != want || err != nil {
			t.Errorf("Allowed with %q = %t, %v; want %t", text, got, err, want)
		}
	}
	t.Setenv(Variable, "perhaps")
	if got, err := Allowed(); got || err == nil || !strings.Contains(err.Error(), Variable) {
		t.Errorf("Allowed = %t, %v; want an error that names %s", got, err, Variable)
	}
}

// check compares err with what is expected, and sees that it says what to do.
func check(t *testing.T, err error, refused bool, do string) {
	t.Helper()
	switch {
	case !refused && err != nil, refused && !errors.Is(err, ErrRefused):
		t.Errorf("got %v, want refused: %t", err, refused)
	case refused && (!strings.Contains(err.Error(), do) || !strings.Contains(err.Error(), "-"+Flag) || strings.Contains(err.Error(), secret)):
		t.Errorf("got %v, want it to say %s and -%s, and no password", err, do, Flag)
	}
}

func TestListensHere(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"127.0.0.1:8080": true, "localhost:0": true, "[::1]:8080": true, "8080": false,
		":8080": false, "0.0.0.0:8080": false, "[::]:8080": false, "10.0.0.1:8080": false, "shop.example:8080": false,
	} {
		if got := ListensHere(address); got != want {
			t.Errorf("ListensHere(%s) = %t", address, got)
		}
	}
}
