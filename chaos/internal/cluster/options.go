package cluster

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"
)

// The values of Options.Order.
const (
	OrderBoth  = ""      // stages with and without a single active consumer
	OrderOnly  = "only"  // stages with a single active consumer
	OrderNever = "never" // stages without one
)

// Options configure a run.
type Options struct {
	Orders     int           // orders to write, at least
	Rate       int           // orders a second
	Colours    int           // messages a second for red, and for blue
	Keys       int           // ordering keys
	Seed       uint64        // of the order of the faults, and of the load
	Only       []string      // faults or stages; empty: all
	Order      string        // OrderBoth, OrderOnly or OrderNever
	NoMajority time.Duration // how long topic red has no majority
	Brief      bool
	Table      string // a file that gets the table; empty: none
	Dir        string // for logs; empty: a temporary one
}

// The defaults and bounds of the options.
const (
	defaultOrders     = 40_000
	briefOrders       = 1_000
	defaultRate       = 150
	briefRate         = 75 // beside other tests on two processors
	defaultColours    = 30
	defaultKeys       = 500
	defaultNoMajority = 20 * time.Second

	maxOrders, maxRate, maxKeys = 5_000_000, 5_000, 1_000_000
	maxNoMajority               = time.Hour
)

// ParseOptions reads the flags of a run.
func ParseOptions(args []string, stderr io.Writer) (*Options, error) {
	o := &Options{}
	flags := flag.NewFlagSet("chaos run -cluster", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.Orders, "orders", defaultOrders, "orders that are written at least; faults strike again until they are")
	flags.IntVar(&o.Rate, "rate", defaultRate, "orders a second")
	flags.IntVar(&o.Colours, "colours", defaultColours, "messages a second for topic red, and for topic blue")
	flags.IntVar(&o.Keys, "keys", defaultKeys, "ordering keys")
	flags.Uint64Var(&o.Seed, "seed", 0, "of the order of the faults and of the load; 0: a new one")
	only := flags.String("only", "", "`names` of faults or stages, separated by commas, as kill-leader,autoheal,tls (default: all)")
	flags.DurationVar(&o.NoMajority, "no-majority", defaultNoMajority, "how long the queue of topic red has no majority")
	single := flags.Bool("single-active", false, "only stages with a single active consumer; =false: only those without (default: both)")
	flags.BoolVar(&o.Brief, "brief", false, "three faults on one cluster, in little more than a minute; goals of time are not judged")
	flags.StringVar(&o.Table, "table", "", "`file` that gets the table")
	flags.StringVar(&o.Dir, "dir", "", "new or empty `directory` for logs (default: a temporary one)")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("%q is not a flag", flags.Arg(0))
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	o.complete(given, *only, *single)
	return o, o.checkOptions()
}

// complete derives the options that depend on several flags.
func (o *Options) complete(given map[string]bool, only string, single bool) {
	if only != "" {
		o.Only = strings.Split(only, ",")
	}
	switch {
	case given["single-active"] && single:
		o.Order = OrderOnly
	case given["single-active"]:
		o.Order = OrderNever
	}
	if o.Brief && !given["orders"] {
		o.Orders = briefOrders
	}
	if o.Brief && !given["rate"] {
		o.Rate = briefRate
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()>>1 + 1
	}
}

func (o *Options) checkOptions() error {
	within := func(name string, n, least, most int) error {
		if n < least || n > most {
			return fmt.Errorf("-%s: %d is not between %d and %d", name, n, least, most)
		}
		return nil
	}
	err := errors.Join(within("orders", o.Orders, 1, maxOrders), within("rate", o.Rate, 1, maxRate),
		within("colours", o.Colours, 1, maxRate), within("keys", o.Keys, 1, maxKeys))
	if o.NoMajority < time.Second || o.NoMajority > maxNoMajority {
		err = errors.Join(err, fmt.Errorf("-no-majority: %s is not between 1s and %s", o.NoMajority, maxNoMajority))
	}
	if err == nil {
		_, err = planStages(o)
	}
	return err
}
