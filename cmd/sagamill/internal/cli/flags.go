package cli

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The default of the flag -management, and its meaning.
const (
	ManagementVariable = "RABBITMQ_MANAGEMENT_URL"
	ManagementUsage    = "URL of RabbitMQ's management API with user, password and virtual host, such as http://user:password@localhost:15672/shop; default: the environment variable " + ManagementVariable
)

// IDList is a flag that may be given several times, with several ids each.
type IDList []int64

// String is for package flag: no ids are the default.
func (l *IDList) String() string { return "" }

// Set adds the ids in s, which commas separate. Its error names the part that is no id.
func (l *IDList) Set(s string) error {
	for part := range strings.SplitSeq(s, ",") {
		id, err := strconv.ParseInt(strings.TrimSpace(part), 10, 64)
		if err != nil || id < 1 {
			return fmt.Errorf("%q is not an id", part)
		}
		*l = append(*l, id)
	}
	return nil
}

// Age is a flag for how long ago something was.
type Age time.Duration

// String returns the age as time.Duration writes it.
func (a *Age) String() string { return time.Duration(*a).String() }

// Set reads a duration such as 720h. Its error says what is wrong with s.
func (a *Age) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return errors.New("it must be hours, minutes or seconds, such as 72h or 90m")
	}
	*a = Age(d)
	return nil
}

// IsGiven reports whether one of the flags called names was on the command line.
func (c *Call) IsGiven(names []string) bool {
	found := false
	c.Flags.Visit(func(f *flag.Flag) { found = found || slices.Contains(names, f.Name) })
	return found
}

// CheckFilled returns an error if one of the flags called names is given and empty. An empty value
// would pick everything, and an unset variable of a shell script is such a value.
func (c *Call) CheckFilled(names []string) (err error) {
	c.Flags.Visit(func(f *flag.Flag) {
		if slices.Contains(names, f.Name) && f.Value.String() == "" {
			err = fmt.Errorf("-%s is empty", f.Name)
		}
	})
	return err
}
