package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/testing/asyncapitest"
)

// What init writes describes itself before it reaches its servers. The command makes a valid document of that.
func TestTopologyOfANewService(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "newservice")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./internal/dev/newservice").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	ctx, stop := context.WithCancel(t.Context())
	service := exec.CommandContext(ctx, program)
	service.Env = append(os.Environ(), "LISTEN="+address, "DATABASE_URL=postgres://u:secret@127.0.0.1:1/db", "AMQP_URL=amqp://u:secret@127.0.0.1:1/")
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = service.Wait() // it was killed
	})
	description := filepath.Join(t.TempDir(), "newservice.json")
	if err := os.WriteFile(description, getPatiently(t, "http://"+address+"/topology"), 0o666); err != nil {
		t.Fatal(err)
	}
	var document, complaint bytes.Buffer
	if code := run(t.Context(), []string{"topology", "asyncapi", "-from", description, "-version", "1.2.3"}, &document, &complaint); code != 0 {
		t.Fatalf("exit %d: %s", code, complaint.String())
	}
	asyncapitest.Check(t, document.Bytes())
	for text, wanted := range map[string]bool{
		`"version": "1.2.3"`: true, `"title": "newservice"`: true, `"newservice.charge.undo"`: true, `"newservice.order.charge.undo"`: true, `"payment.refund"`: true, `"parcel.send"`: true, `"amount"`: true,
		"secret": false,
	} {
		if strings.Contains(document.String(), text) != wanted {
			t.Errorf("%s is in the document: %t\n%s", text, !wanted, document.String())
		}
	}
}

// getPatiently returns the body that the server at url answers with, once there is one.
func getPatiently(t *testing.T, url string) []byte {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(time.Minute); ; {
		if response, err := http.Get(url); err == nil {
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s %v", url, response.Status, err)
			}
			return body
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("%s does not answer", url)
		}
	}
}

// Descriptions come from several files, one after the other in a file, or in an array. What is no description is named.
func TestTopologyReadsDescriptions(t *testing.T) {
	t.Parallel()
	const shop, pay = `{"service": "shop", "version": "1"}`, `{"service": "pay", "version": "1", "further": true}`
	for want, files := range map[string][]string{
		`"title": "pay, shop"`:                             {shop + pay},
		`"title": "mail, pay, shop"`:                       {"[" + shop + "," + pay + "]", `{"service": "mail"}`},
		`"version": "1"`:                                   {pay, shop},
		`"version": "unversioned"`:                         {`{"service": "mail"}`, shop},
		"no description of a service: give one with -from": {},
		"two descriptions of service shop":                 {shop, shop},
		`this is no description of a service`:              {`{"prefix": "a", "services": []}`},
		"there is no description of a service":             {""},
		"unexpected EOF":                                   {shop + "{"},
		"cannot unmarshal":                                 {`[3]`},
		"a message has no topic or no type":                {`{"service": "shop", "steps": [{"name": "charge"}]}`},
		"no such file":                                     {"/dev/null/no such file"},
		"sagamill: -from":                                  {"null"},
	} {
		args := []string{"topology", "asyncapi"}
		for _, text := range files {
			name := text
			if !strings.HasPrefix(text, "/") {
				name = topologyFile(t, text)
			}
			args = append(args, "-from", name)
		}
		var out, complaint bytes.Buffer
		code := run(t.Context(), args, &out, &complaint)
		if said := out.String() + complaint.String(); !strings.Contains(said, want) || (code == 0) != strings.HasPrefix(want, `"`) {
			t.Errorf("%v: exit %d, %s; want %s", files, code, said, want)
		}
	}
}
