package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"

	"github.com/sagamill/sagamill/operator"
)

// defaultRate is how many messages a second are sent again without -rate. Consumers have other work
// to do meanwhile.
const defaultRate = 500

// AddRateFlag adds the flag -rate, the limit of messages or instances per second. 0 means no limit, as in
// [operator.RangeOptions].
func (c *Call) AddRateFlag(of string) *float64 {
	return c.Flags.Float64("rate", defaultRate, fmt.Sprintf("largest number of %s per second; 0 means no limit; default: %d", of, defaultRate))
}

// AddOperatorFlags adds the flags -by and -why, of a command that changes something. It comes after TakeSeveral.
func (c *Call) AddOperatorFlags() *operator.Options {
	c.MarkChange()
	o := &operator.Options{}
	c.Flags.StringVar(&o.By, "by", FindUserName(), "name of the person who makes the change; default: the user who runs the command")
	c.Flags.StringVar(&o.Why, "why", "", "reason for the change; other people see this reason in the output of sagamill journal")
	return o
}

// MarkChange says that the command changes something, so that it takes no schema that nobody has named. It comes after
// TakeSeveral.
func (c *Call) MarkChange() {
	c.changes = true
	c.Flags.Lookup("schema").Usage = strings.TrimSuffix(c.Flags.Lookup("schema").Usage, orOnly)
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
	c.Flags.BoolVar(&k.yes, "yes", false, "needed if filter flags or a time range select what to change; without -yes, the command then only prints what it would change")
	c.Flags.BoolVar(&k.Dry, "n", false, "print what the command would do, and change nothing")
	c.Flags.BoolVar(&k.Dry, "dry-run", false, "the same as -n")
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
