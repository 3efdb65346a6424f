package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"

	"github.com/sagamill/sagamill/operator"
)

// defaultRate is how many messages a second are sent out once more, unless -rate says
// otherwise: what consumers have to do besides their work.
const defaultRate = 500

// AddRate adds the flag -rate to c. 0 is as many as go, as it is in [operator.RangeOptions].
func (c *Call) AddRate() *float64 {
	return c.Flags.Float64("rate", defaultRate, fmt.Sprintf("so many in a second, 0: as many as go; default: %d", defaultRate))
}

// AddOperator adds the flags to c for who does it, and why.
func (c *Call) AddOperator() *operator.Options {
	o := &operator.Options{}
	c.Flags.StringVar(&o.By, "by", UserName(), "who does it; default: the user who runs this")
	c.Flags.StringVar(&o.Why, "why", "", "why; sagamill journal shows it to others")
	return o
}

func UserName() string {
	u, err := user.Current()
	if err != nil {
		return os.Getenv("USER")
	}
	return cmp.Or(u.Username, u.Uid)
}

// A Consent is whether something is done, or only told.
type Consent struct {
	Dry, yes bool
	asked    bool // there are many, and nobody has said -yes or -n
}

// AddConsent adds the flags of a consent to c.
func (c *Call) AddConsent() *Consent {
	k := &Consent{}
	c.Flags.BoolVar(&k.yes, "yes", false, "do it to all that is picked; without it, where messages are not named one by one, only say what would be done")
	c.Flags.BoolVar(&k.Dry, "n", false, "say what would be done, and do nothing")
	c.Flags.BoolVar(&k.Dry, "dry-run", false, "as -n")
	return k
}

// Decide settles whether it is done. What many messages are picked for is, with -yes.
func (k *Consent) Decide(many bool) error {
	if k.Dry && k.yes {
		return errors.New("say -n or -yes, and not both")
	}
	k.asked = many && !k.Dry && !k.yes
	k.Dry = k.Dry || k.asked
	return nil
}

// Conclude is err, with which what would be done was told, or that it has to be said again.
// That is an error: a script that does not say -yes is to notice.
func (k *Consent) Conclude(err error) error {
	if err == nil && k.asked {
		err = errors.New("nothing is done yet: the same with -yes does it")
	}
	return err
}
