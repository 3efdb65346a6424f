package fault

import (
	"fmt"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// A process that has just died is back within some tens of milliseconds.
const (
	killAttempts = 20
	killPause    = 25 * time.Millisecond
)

func (c *carrier) kill(p *record.Planned) outcome {
	for range killAttempts {
		struck, err := c.site.Kill(p.Target)
		if err != nil {
			return failed(err)
		}
		if struck {
			return outcome{hits: 1}
		}
		c.wait(killPause)
	}
	return failed(errNotRunning)
}

func (c *carrier) suspend(p *record.Planned) outcome {
	struck, err := c.site.Suspend(p.Target)
	if err != nil || !struck {
		return failed(cmpErr(err, errNotRunning))
	}
	c.wait(p.For)
	if _, err := c.site.Resume(p.Target); err != nil {
		return failed(err)
	}
	return outcome{hits: 1}
}

// cmpErr returns the first error that is one.
func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// rollingRestart restarts the processes of a service one after the other. How each
// has ended is judged by its Exit.
func (c *carrier) rollingRestart(p *record.Planned) outcome {
	ctx, cancel := c.finish()
	defer cancel()
	var o outcome
	for _, n := range []string{"-1", "-2"} {
		stopped, err := c.site.Restart(ctx, p.Target+n)
		if err != nil {
			return failed(err)
		}
		o.hits++
		o.note += fmt.Sprintf("%s: code %d in %s ", p.Target+n, stopped.Code, stopped.Took.Round(time.Millisecond))
	}
	return o
}
