package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	schema := pgtest.Name()
	pgtest.DropSchema(t, schema)
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"migrate up -schema " + schema + " -database " + pgtest.URL(), 0, "schema " + schema + ": applied 13 migrations of idempotency,outbox,inbox,saga\n"},
		{"migrate up -schema " + schema + " -database " + pgtest.URL(), 0, "schema " + schema + ": idempotency,outbox,inbox,saga are up to date (13 migrations)\n"},
		{"migrate version -schema " + schema + " -database " + pgtest.URL(), 0, "13 of 13"},
		{"migrate print -schema " + schema, 0, "CREATE TABLE " + schema + ".outbox"},
		{"migrate roles -schema " + schema + " -prefix shop", 0, "GRANT SELECT, UPDATE ON " + schema + ".outbox_relay TO shop_relay;"},
		{"migrate roles -h", 0, "names of the roles; default: sagamill"},
		{"migrate roles -prefix a;b", 1, "prefix"},
		{"migrate roles -schema a;b", 1, "schema"},
		{"migrate roles -to 1", 1, "-to"},
		{"migrate down -schema " + schema + " -database " + pgtest.URL(), 1, "-to"},
		{"migrate down -to 4294967296 -schema " + schema + " -database " + pgtest.URL(), 1, "-to"},
		{"migrate down -to 0 -schema " + schema + " -database " + pgtest.URL(), 1, "nothing is done yet"},
		{"migrate version -schema " + schema + " -database " + pgtest.URL(), 0, "13 of 13"},
		{"migrate down -to 0 -yes -schema " + schema + " -database " + pgtest.URL(), 0, "0 of 13"},
		{"migrate version -schema " + schema + " -database " + pgtest.URL(), 0, "0 of 13"},
		{"migrate up -only idempotency, -schema " + schema + " -database " + pgtest.URL(), 0, ": applied 13 migrations of idempotency\n"},
		{"migrate up -only idempotency -schema " + schema + " -database " + pgtest.URL(), 0, ": idempotency is up to date (13 migrations)\n"},
		{"migrate up -only saga -schema " + schema + " -database " + pgtest.URL(), 0, ": applied 13 migrations of outbox,inbox,saga\n"},
		{"migrate version -schema " + schema + " -database " + pgtest.URL(), 0, "has had 13 of 13 migrations of idempotency,outbox,inbox,saga\n"},
		{"migrate up -only journal -schema " + schema + " -database " + pgtest.URL(), 1, "the parts are idempotency, outbox, inbox, saga"},
		{"migrate print -only outbox -schema " + schema, 0, "SET parts = nullif('outbox journal', '')"},
		{"migrate roles -only outbox -schema " + schema, 0, "<> 'outbox journal'"},
		{"migrate down -to 0 -yes -schema " + schema + " -database " + pgtest.URL(), 0, "0 of 13"},
		{"migrate up -schema a;b -database " + pgtest.URL(), 1, "schema"},
		{"migrate up -database postgres://u:s3cret@127.0.0.1:1/x", 1, "connect"},
		{"migrate up now", 1, `"now"`},
		{"migrate sideways -database x", 2, "usage"},
		{"migrate", 2, "usage"},
		{"dead lst -id 1", 2, "sagamill: there is no command \"dead lst\"\nusage:\n  sagamill dead list"},
		{"outbox dead \x1b", 2, `no command "outbox dead \x1b"`},
		{"dead -id 1", 2, ""},
		{"", 2, "outbox dead list"},
		{"outbox dead", 2, "outbox dead discard"},
		{"outbox dead redrive -h", 0, "-dry-run         the same as -n\n"},
		{"dead edit -h", 0, "-dry-run         the same as -n\n"},
		{"dead list -older 3d", 1, "such as 72h"},
		{"outbox dead list -older 3d", 1, "such as 72h"},
		{"outbox status -database=", 1, "no database"},
		{"outbox status -database " + pgtest.URL() + " -schema " + schema, 1, "outbox_relay"},
		{"outbox dead list -schema a;b -database " + pgtest.URL(), 1, "schema"},
	} {
		var out bytes.Buffer
		code := run(t.Context(), strings.Fields(tt.args), &out, &out)
		if short := tt.args == "" || tt.args == "outbox dead" || tt.args == "dead -id 1"; short && !strings.HasPrefix(out.String(), "usage:") {
			t.Errorf("sagamill %s: %q; want the usage alone", tt.args, out.String())
		}
		if code != tt.code || !strings.Contains(out.String(), tt.says) || strings.Contains(out.String(), "s3cret") {
			t.Errorf("sagamill %s: exit %d, %q; want %d and %q", tt.args, code, out.String(), tt.code, tt.says)
		}
	}
}

// Whoever asks for help gets it where it can be paged, with success.
func TestHelp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args string
		code int
		out  string // "": nothing is printed there
		err  string
	}{
		{"help", 0, "usage:\n  sagamill init ", ""},
		{"-h", 0, "usage:", ""},
		{"--help", 0, "usage:", ""},
		{"help dead", 0, "usage:\n  sagamill dead list", ""},
		{"dead -h", 0, "usage:\n  sagamill dead list", ""},
		{"help dead list", 0, "sagamill dead list: ", ""},
		{"help -h dead list", 0, "sagamill dead list: ", ""},
		{"dead list -h", 0, "sagamill dead list: ", ""},
		{"broker delete -h", 0, "-topology ", ""},
		{"help dead lst", 2, "", `no command "dead lst"`},
		{"help dead list now", 2, "", "usage:"},
		{"dead lst -h", 2, "", "usage:"},
		{"dead", 2, "", "usage:"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), strings.Fields(tt.args), &out, &errs)
		if code != tt.code || !strings.Contains(out.String(), tt.out) || !strings.Contains(errs.String(), tt.err) || tt.out == "" && out.Len() > 0 || tt.err == "" && errs.Len() > 0 {
			t.Errorf("sagamill %s: exit %d, out %q, err %q; want %d, %q and %q", tt.args, code, out.String(), errs.String(), tt.code, tt.out, tt.err)
		}
		if strings.HasPrefix(tt.args, "broker") && strings.Contains(out.String(), "-database") {
			t.Errorf("sagamill %s names a database: %q", tt.args, out.String())
		}
	}
}
