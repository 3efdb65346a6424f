package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"

	"github.com/sagamill/sagamill/operator"
)

// defaultRate is how many messages a second are sent again without -rate. Consumers have other work
// to do meanwhile.
const defaultRate = 500

// AddRateFlag adds the flag -rate. 0 means no limit, as in [operator.RangeOptions].
func (c *Call) AddRateFlag() *float64 {
	return c.Flags.Float64("rate", defaultRate, fmt.Sprintf("so many in a second, 0: as many as go; default: %d", defaultRate))
}

// AddOperatorFlags adds the flags -by and -why.
func (c *Call) AddOperatorFlags() *operator.Options {
	o := &operator.Options{}
	c.Flags.StringVar(&o.By, "by", FindUserName(), "who does it; default: the user who runs this")
	c.Flags.StringVar(&o.Why, "why", "", "why; sagamill journal shows it to others")
	return o
}

// FindUserName returns the name of the user who runs the process.
func FindUserName() string {
	u, err := user.Current()
	if err != nil {
		return os.Getenv("USER")
	}
	return cmp.Or(u.Username, u.Uid)
}

// A Consent decides whether a change is made or only previewed.
type Consent struct {
	Dry, yes bool
	asked    bool // many messages are picked, with neither -yes nor -n
}

// AddConsentFlags adds the flags of a consent to c.
func (c *Call) AddConsentFlags() *Consent {
	k := &Consent{}
	c.Flags.BoolVar(&k.yes, "yes", false, "do it to all that is picked; without it, where messages are not named one by one, only say what would be done")
	c.Flags.BoolVar(&k.Dry, "n", false, "say what would be done, and do nothing")
	c.Flags.BoolVar(&k.Dry, "dry-run", false, "as -n")
	return k
}

// DecideChange sets Dry unless the change is to be made. A change of many messages needs -yes.
func (k *Consent) DecideChange(many bool) error {
	if k.Dry && k.yes {
		return errors.New("say -n or -yes, and not both")
	}
	k.asked = many && !k.Dry && !k.yes
	k.Dry = k.Dry || k.asked
	return nil
}

// ConcludePreview returns err, the error of a preview. If the preview took the place of a change, it
// returns an error that asks for -yes, so that a script without -yes fails.
func (k *Consent) ConcludePreview(err error) error {
	if err == nil && k.asked {
		err = errors.New("nothing is done yet: the same with -yes does it")
	}
	return err
}
