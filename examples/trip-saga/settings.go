package main

import (
	"io"
	"time"

	"github.com/sagamill/sagamill/examples/internal/demo"
)

// settings are what serve runs with.
type settings struct {
	demo.Settings

	patience time.Duration // for a booking
}

// The patience of a trip. The saga as a whole has twice as much.
const (
	defaultPatience = 10 * time.Second
	minPatience     = 100 * time.Millisecond
	maxPatience     = time.Hour
)

// parseServe reads the flags of serve and the environment.
func parseServe(args []string, stderr io.Writer) (*settings, error) {
	s := &settings{Settings: demo.Settings{Program: program}}
	flags := s.NewServeFlags(stderr)
	flags.DurationVar(&s.patience, "patience", defaultPatience, "how long a booking is waited for; also what comes before the ticket, twice as long")
	if err := flags.ParseArgs(args); err != nil {
		return nil, err
	}
	return s, s.checkSettings()
}

func (s *settings) checkSettings() error {
	if err := s.CheckFlags(); err != nil {
		return err
	}
	if err := checkPatience(s.patience); err != nil {
		return err
	}
	return s.CheckURLs()
}

func checkPatience(d time.Duration) error {
	if d < minPatience || d > maxPatience {
		return demo.BadSetting("-patience", "%s is not between %s and %s", d, minPatience, maxPatience)
	}
	return nil
}
