package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/saga"
)

func TestWrongSettingsAreNamedInOneLine(t *testing.T) {
	for name, tt := range map[string]struct {
		args  []string
		env   map[string]string
		names string
	}{
		"service":             {args: []string{"serve", "-services", "trip,train"}, names: "-services"},
		"service twice":       {args: []string{"serve", "-services", "car,car"}, names: "-services"},
		"listen":              {args: []string{"serve", "-listen", "8080"}, names: "-listen"},
		"namespace":           {args: []string{"serve", "-namespace", "a b"}, names: "-namespace"},
		"patience":            {args: []string{"serve", "-patience", "1ms"}, names: "-patience"},
		"start timeout":       {args: []string{"serve", "-start-timeout", "0s"}, names: "-start-timeout"},
		"keep":                {args: []string{"serve", "-keep", "-1s"}, names: "-keep"},
		"remote database":     {args: []string{"serve"}, env: map[string]string{"DATABASE_URL": "postgres://u:s3cret@db.example/x"}, names: "DATABASE_URL"},
		"one remote database": {args: []string{"serve"}, env: map[string]string{"MAIL_DATABASE_URL": "postgres://u:s3cret@127.0.0.1,db.example/x"}, names: "MAIL_DATABASE_URL"},
		"remote broker":       {args: []string{"serve"}, env: map[string]string{"AMQP_URL": "amqp://u:s3cret@mq.example/"}, names: "AMQP_URL"},
		"plaintext variable":  {args: []string{"serve"}, env: map[string]string{"SAGAMILL_ALLOW_PLAINTEXT": "perhaps"}, names: "SAGAMILL_ALLOW_PLAINTEXT"},
		"argument":            {args: []string{"serve", "now"}, names: "arguments"},
		"database":            {args: []string{"serve"}, env: map[string]string{"DATABASE_URL": "postgres://u:s3cret@h:port/x"}, names: "DATABASE_URL"},
		"one database":        {args: []string{"serve"}, env: map[string]string{"CAR_DATABASE_URL": "postgres://u:s3cret@h:port/x"}, names: "CAR_DATABASE_URL"},
		"broker":              {args: []string{"serve"}, env: map[string]string{"AMQP_URL": "http://u:s3cret@h"}, names: "AMQP_URL"},
		"second broker":       {args: []string{"serve"}, env: map[string]string{"AMQP_URL": "amqp://u:s3cret@127.0.0.1/,amqp://u:s3cret@h:port/"}, names: "AMQP_URL"},
		"remote, one of two":  {args: []string{"serve"}, env: map[string]string{"AMQP_URL": "amqp://u:s3cret@127.0.0.1/,amqp://u:s3cret@mq.example/"}, names: "AMQP_URL"},
		"broker in process":   {args: []string{"serve", "-services", "trip"}, env: map[string]string{"AMQP_URL": "inproc:"}, names: "AMQP_URL"},
		"trips":               {args: []string{"demo", "-trips", "0"}, names: "-trips"},
		"clients":             {args: []string{"demo", "-clients", "65"}, names: "-clients"},
		"kills":               {args: []string{"demo", "-processes", "-kill", "-1"}, names: "-kill"},
		"kills in one":        {args: []string{"demo", "-kill", "1"}, names: "-kill"},
		"demo patience":       {args: []string{"demo", "-patience", "2h"}, names: "-patience"},
		"plan argument":       {args: []string{"plan", "trip"}, names: "arguments"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, variable := range []string{"DATABASE_URL", "AMQP_URL", "TRIP_SAGA_NAMESPACE", "CAR_DATABASE_URL", "MAIL_DATABASE_URL", "SAGAMILL_ALLOW_PLAINTEXT"} {
				t.Setenv(variable, tt.env[variable])
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

func TestTheSagaIsPrinted(t *testing.T) {
	t.Parallel()
	var plan, definitions, complaint bytes.Buffer
	if code := runCommand(t.Context(), []string{"plan"}, &plan, &complaint); code != 0 || !strings.Contains(plan.String(), "ticket: on ticket.issue, pivot") {
		t.Errorf("plan: exit %d, %s%s", code, plan.String(), complaint.String())
	}
	if code := runCommand(t.Context(), []string{"definitions"}, &definitions, &complaint); code != 0 {
		t.Errorf("definitions: exit %d, %s", code, complaint.String())
	}
	m, err := saga.ReadManifest(&definitions)
	if err != nil || len(m) != 1 || m[0].Saga != "trip" {
		t.Errorf("definitions are the manifest %+v, %v", m, err)
	}
}
