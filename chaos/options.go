package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// brief takes less than two minutes on a quiet machine and is a part of make test. It allows a longer drain,
// because drain times on a shared machine say nothing about the product.
var brief = record.Options{
	Storm: 20 * time.Second, KillEvery: 160 * time.Millisecond,
	Sagas: 1000, Clients: 128, Trips: 20, Replays: 1,
	BrokerKills: 1, Crashes: 1, Alarms: 1, Drain: drainPatience,
}

// short is the run of make chaos and takes five minutes. Its number of sagas suits two processors that clients,
// services and servers share: with -sagas 20100 they needed 1 to 1.5 minutes to drain, more than the 30 s
// allowed.
var short = record.Options{
	Storm: 190 * time.Second, KillEvery: 195 * time.Millisecond,
	Sagas: 9000, Clients: 256, Trips: 25, Replays: 1,
	BrokerKills: 1, Crashes: 3, Alarms: 5,
}

// long is half an hour.
var long = record.Options{
	Storm: 30 * time.Minute, KillEvery: 185 * time.Millisecond,
	Sagas: 60_000, Clients: 256, Trips: 25, Replays: 1,
	BrokerKills: 10, Crashes: 30, Alarms: 50,
}

// A plan holds the settings of a run.
type plan struct {
	record.Run

	dir      string // for the run's records
	schedule []record.Planned
}

// The bounds of the options. A run beyond them would do nothing or never end.
const (
	minStorm, maxStorm     = 2 * time.Second, 6 * time.Hour
	minKillEvery           = 20 * time.Millisecond
	maxSagas, maxClients   = 5_000_000, 512
	maxReplays, maxStrikes = 10, 1000
)

// parsePlan reads the flags of run.
func parsePlan(args []string, stderr io.Writer) (*plan, error) {
	p := &plan{}
	flags := flag.NewFlagSet("chaos run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	isBrief := flags.Bool("brief", false, "a minute, 1,000 sagas and 120 kills; other flags change them")
	isLong := flags.Bool("long", false, "half an hour, 60,000 sagas and 10,000 kills; other flags change them")
	flags.Bool(clusterFlag[1:], false, "a run on a cluster of three RabbitMQ nodes instead, with flags of its own: -cluster -h lists them")
	replay := flags.String("replay", "", "`directory` of a run whose seed, options and schedule are taken")
	flags.Uint64Var(&p.Seed, "seed", 0, "of the schedule and the load; 0: a new one")
	flags.StringVar(&p.dir, "dir", "", "new or empty `directory` for what the run leaves behind (default: a temporary one)")
	overlay := flags.String("overlay", "", "`file` for go build -overlay of the services: bin/mutate -overlay writes one with a bug")
	o := &p.Options
	flags.DurationVar(&o.Storm, "storm", short.Storm, "how long faults strike")
	flags.DurationVar(&o.KillEvery, "kill-every", short.KillEvery, "from one SIGKILL to the next, on average")
	flags.IntVar(&o.Sagas, "sagas", short.Sagas, "sagas that are begun, at least")
	flags.IntVar(&o.Clients, "clients", short.Clients, "clients at the same time")
	flags.IntVar(&o.Trips, "trips", short.Trips, "of a hundred sagas; the others are orders")
	flags.IntVar(&o.Replays, "replays", short.Replays, "how often the whole history is published again at the end")
	flags.IntVar(&o.BrokerKills, "broker-kills", short.BrokerKills, "SIGKILLs of the broker")
	flags.IntVar(&o.Crashes, "crashes", short.Crashes, "immediate restarts of PostgreSQL")
	flags.IntVar(&o.Alarms, "alarms", short.Alarms, "memory alarms of the broker")
	flags.DurationVar(&o.Drain, "drain", record.DefaultDrain, "how long everything may take to be done once nothing strikes any more")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("%q is not a flag", flags.Arg(0))
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	switch {
	case *isBrief && *isLong:
		return nil, errors.New("-brief and -long exclude each other")
	case *isBrief:
		p.applyPreset(brief, given)
	case *isLong:
		p.applyPreset(long, given)
	}
	if *replay != "" {
		if err := p.takeDirectory(*replay, given); err != nil {
			return nil, err
		}
	}
	if given["overlay"] {
		p.Overlay = *overlay
	}
	if p.Seed == 0 {
		p.Seed = rand.Uint64()>>1 + 1
	}
	return p, p.checkPlan()
}

// applyPreset takes all options of another run except those given by flags.
func (p *plan) applyPreset(of record.Options, given map[string]bool) {
	o := p.Options
	p.Options = of
	for name, keep := range map[string]func(){
		"storm": func() { p.Options.Storm = o.Storm }, "kill-every": func() { p.Options.KillEvery = o.KillEvery },
		"sagas": func() { p.Options.Sagas = o.Sagas }, "clients": func() { p.Options.Clients = o.Clients },
		"trips": func() { p.Options.Trips = o.Trips }, "replays": func() { p.Options.Replays = o.Replays },
		"broker-kills": func() { p.Options.BrokerKills = o.BrokerKills }, "crashes": func() { p.Options.Crashes = o.Crashes },
		"alarms": func() { p.Options.Alarms = o.Alarms }, "drain": func() { p.Options.Drain = o.Drain },
	} {
		if given[name] {
			keep()
		}
	}
}

// takeDirectory takes the settings of the run in dir. Only the new run's directories and the overlay of the
// build may be given by flags.
func (p *plan) takeDirectory(dir string, given map[string]bool) error {
	for name := range given {
		if name != "replay" && name != "dir" && name != "overlay" {
			return fmt.Errorf("-%s and -replay exclude each other", name)
		}
	}
	if err := record.ReadJSON(dir, record.RunFile, &p.Run); err != nil {
		return fmt.Errorf("-replay: %w", err)
	}
	var err error
	if p.schedule, err = record.ReadAll[record.Planned](dir, record.ScheduleFile); err != nil {
		return fmt.Errorf("-replay: %w", err)
	}
	return nil
}

func (p *plan) checkPlan() error {
	o := &p.Options
	within := func(name string, n, least, most int) error {
		if n < least || n > most {
			return fmt.Errorf("-%s: %d is not between %d and %d", name, n, least, most)
		}
		return nil
	}
	var bad error
	if o.Storm < minStorm || o.Storm > maxStorm {
		bad = fmt.Errorf("-storm: %s is not between %s and %s", o.Storm, minStorm, maxStorm)
	}
	if o.KillEvery < minKillEvery || o.KillEvery > o.Storm {
		bad = errors.Join(bad, fmt.Errorf("-kill-every: %s is not between %s and -storm", o.KillEvery, minKillEvery))
	}
	if o.Drain < 0 || o.Drain > drainPatience {
		bad = errors.Join(bad, fmt.Errorf("-drain: %s is not between 0s and %s", o.Drain, drainPatience))
	}
	return errors.Join(bad,
		within("sagas", o.Sagas, 1, maxSagas), within("clients", o.Clients, 1, maxClients), within("trips", o.Trips, 0, 100),
		within("replays", o.Replays, 0, maxReplays), within("broker-kills", o.BrokerKills, 0, maxStrikes),
		within("crashes", o.Crashes, 0, maxStrikes), within("alarms", o.Alarms, 0, maxStrikes))
}

// directory makes the run's directory, which must be empty, or a temporary one.
func (p *plan) directory() (err error) {
	if p.dir == "" {
		p.dir, err = os.MkdirTemp("", "chaos-")
		return err
	}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return fmt.Errorf("-dir: %w", err)
	}
	there, err := os.ReadDir(p.dir)
	if err != nil {
		return fmt.Errorf("-dir: %w", err)
	}
	if len(there) > 0 {
		return fmt.Errorf("-dir: %s is not empty", p.dir)
	}
	return nil
}
