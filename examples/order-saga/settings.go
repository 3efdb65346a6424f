package main

import (
	"cmp"
	"io"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/examples/internal/demo"
)

// settings are what serve runs with.
type settings struct {
	demo.Settings

	gatewayURL   string // empty: the gateway in this process
	gatewayPlain bool   // the payment gateway does not know idempotency
	trace        string // file for traces; empty: none are made
}

// gatewayPlainVariable sets -gateway-plain for processes that are not started by hand.
const gatewayPlainVariable = "ORDER_SAGA_GATEWAY_PLAIN"

// parseServe reads the flags of serve and the environment.
func parseServe(args []string, stderr io.Writer) (*settings, error) {
	s := &settings{Settings: demo.Settings{Program: program}}
	flags := s.NewServeFlags(stderr)
	flags.StringVar(&s.gatewayURL, "gateway-url", "", "payment gateway (default: the one in this process)")
	plainVariable := os.Getenv(gatewayPlainVariable)
	plain, plainErr := strconv.ParseBool(cmp.Or(plainVariable, "false"))
	flags.BoolVar(&s.gatewayPlain, "gateway-plain", plain,
		"the payment gateway charges each time it is called, whatever the Idempotency-Key: the one run here, and the one\nthat the payment service calls, which asks GET /charges/{key} before it calls again; also by "+gatewayPlainVariable)
	flags.StringVar(&s.trace, "trace", "", "file to which traces are appended, a span a line; - for standard error (default: no traces)")
	if err := flags.ParseArgs(args); err != nil {
		return nil, err
	}
	if plainErr != nil {
		return nil, demo.BadSetting(gatewayPlainVariable, "%q is neither true nor false", plainVariable)
	}
	return s, s.checkSettings()
}

func (s *settings) checkSettings() error {
	if err := s.CheckFlags(); err != nil {
		return err
	}
	if slices.Contains(s.Services, "payment") && !slices.Contains(s.Services, "gateway") && s.gatewayURL == "" {
		return demo.BadSetting("-gateway-url", "needed where the payment service runs without the gateway")
	}
	if u, err := url.Parse(s.gatewayURL); s.gatewayURL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return demo.BadSetting("-gateway-url", "%q is not an http or https URL", s.gatewayURL)
	}
	s.gatewayURL = strings.TrimSuffix(s.gatewayURL, "/")
	if err := s.CheckURLs(); err != nil {
		return err
	}
	return s.CheckHTTP("-gateway-url", s.gatewayURL)
}
