package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestWrongSettingsAreNamedInOneLine(t *testing.T) {
	for name, tt := range map[string]struct {
		args  []string
		env   map[string]string
		names string
	}{
		"service":             {args: []string{"serve", "-services", "order,warehouse"}, names: "-services"},
		"service twice":       {args: []string{"serve", "-services", "order,order"}, names: "-services"},
		"no service":          {args: []string{"serve", "-services", ""}, names: "-services"},
		"listen":              {args: []string{"serve", "-listen", "8080"}, names: "-listen"},
		"gateway missing":     {args: []string{"serve", "-services", "payment"}, names: "-gateway-url"},
		"gateway scheme":      {args: []string{"serve", "-gateway-url", "ftp://x"}, names: "-gateway-url"},
		"gateway no host":     {args: []string{"serve", "-gateway-url", "localhost"}, names: "-gateway-url"},
		"namespace":           {args: []string{"serve", "-namespace", "a b"}, names: "-namespace"},
		"namespace variable":  {args: []string{"serve"}, env: map[string]string{"ORDER_SAGA_NAMESPACE": "a.b"}, names: "-namespace"},
		"gateway variable":    {args: []string{"serve"}, env: map[string]string{"ORDER_SAGA_GATEWAY_PLAIN": "perhaps"}, names: "ORDER_SAGA_GATEWAY_PLAIN"},
		"start timeout":       {args: []string{"serve", "-start-timeout", "0s"}, names: "-start-timeout"},
		"keep":                {args: []string{"serve", "-keep", "-1s"}, names: "-keep"},
		"argument":            {args: []string{"serve", "now"}, names: "arguments"},
		"database":            {args: []string{"serve"}, env: map[string]string{"DATABASE_URL": "postgres://u:s3cret@h:port/x"}, names: "DATABASE_URL"},
		"one database":        {args: []string{"serve"}, env: map[string]string{"PAYMENT_DATABASE_URL": "postgres://u:s3cret@h:port/x"}, names: "PAYMENT_DATABASE_URL"},
		"broker":              {args: []string{"serve"}, env: map[string]string{"AMQP_URL": "http://u:s3cret@h"}, names: "AMQP_URL"},
		"second broker":       {args: []string{"serve"}, env: map[string]string{"AMQP_URL": "amqp://u:s3cret@127.0.0.1/,amqp://u:s3cret@h:port/"}, names: "AMQP_URL"},
		"remote, one of two":  {args: []string{"serve"}, env: map[string]string{"AMQP_URL": "amqp://u:s3cret@127.0.0.1/,amqp://u:s3cret@mq.example/"}, names: "AMQP_URL"},
		"broker in process":   {args: []string{"serve", "-services", "order"}, env: map[string]string{"AMQP_URL": "inproc:"}, names: "AMQP_URL"},
		"remote database":     {args: []string{"serve"}, env: map[string]string{"DATABASE_URL": "postgres://u:s3cret@db.example/x"}, names: "DATABASE_URL"},
		"one remote database": {args: []string{"serve"}, env: map[string]string{"SHIPPING_DATABASE_URL": "postgres://u:s3cret@127.0.0.1,db.example/x"}, names: "SHIPPING_DATABASE_URL"},
		"remote broker":       {args: []string{"serve"}, env: map[string]string{"AMQP_URL": "amqp://u:s3cret@mq.example/"}, names: "AMQP_URL"},
		"remote gateway":      {args: []string{"serve", "-gateway-url", "http://pay.example"}, names: "-gateway-url"},
		"plaintext variable":  {args: []string{"serve"}, env: map[string]string{"SAGAMILL_ALLOW_PLAINTEXT": "perhaps"}, names: "SAGAMILL_ALLOW_PLAINTEXT"},
		"plaintext allowed":   {args: []string{"serve", "-allow-plaintext", "-listen", ":8080", "-keep", "-1s"}, names: "-keep"},
		"orders":              {args: []string{"demo", "-orders", "0"}, names: "-orders"},
		"clients":             {args: []string{"demo", "-clients", "65"}, names: "-clients"},
		"kills":               {args: []string{"demo", "-kill", "-1"}, names: "-kill"},
		"kills together":      {args: []string{"demo", "-kill", "1", "-together"}, names: "-kill"},
		"demo argument":       {args: []string{"demo", "now"}, names: "arguments"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, variable := range []string{"DATABASE_URL", "AMQP_URL", "ORDER_SAGA_NAMESPACE", "ORDER_SAGA_GATEWAY_PLAIN", "SAGAMILL_ALLOW_PLAINTEXT"} {
				t.Setenv(variable, tt.env[variable])
			}
			for variable, value := range tt.env {
				t.Setenv(variable, value)
			}
			var out, complaint bytes.Buffer
			code := runCommand(t.Context(), tt.args, &out, &complaint)
			text := complaint.String()
			if code != 2 || strings.Count(text, "\n") != 1 || !strings.Contains(text, tt.names+": ") || strings.Contains(text, "s3cret") {
				t.Errorf("exit %d, %q; want 2 and one line that names %s", code, text, tt.names)
			}
		})
	}
}

func TestAnUnreachableServiceIsAnErrorThatNamesIt(t *testing.T) {
	databaseURL := database(t)
	for service := range program.Schemas { // before the clock starts
		if err := program.MigrateService(t.Context(), service, databaseURL); err != nil {
			t.Fatal(err)
		}
	}
	for variable, url := range map[string]string{
		"DATABASE_URL": "postgres://u:s3cret@127.0.0.1:1/x", "SHIPPING_DATABASE_URL": "postgres://u:s3cret@127.0.0.1:1/x",
		"AMQP_URL": "amqp://u:s3cret@127.0.0.1:1/",
	} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv("DATABASE_URL", databaseURL)
			t.Setenv("AMQP_URL", "inproc:")
			t.Setenv(variable, url)
			var complaint bytes.Buffer
			code := runCommand(t.Context(), []string{"serve", "-listen", "127.0.0.1:0", "-start-timeout", "1s"}, &complaint, &complaint)
			if code == 0 || !strings.Contains(complaint.String(), variable) || strings.Contains(complaint.String(), "s3cret") {
				t.Errorf("exit %d, %q; want an error that names %s", code, complaint.String(), variable)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		code int
	}{{nil, 2}, {[]string{"dance"}, 2}, {[]string{"help"}, 0}, {[]string{"serve", "-h"}, 0}, {[]string{"demo", "-h"}, 0}} {
		var out bytes.Buffer
		if code := runCommand(t.Context(), tt.args, &out, &out); code != tt.code || !strings.Contains(strings.ToLower(out.String()), "usage") {
			t.Errorf("%q: exit %d, %q", tt.args, code, out.String())
		}
	}
}
