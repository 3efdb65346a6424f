package fault

import (
	"fmt"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// A process that has just died is back after some tens of milliseconds.
const (
	killAttempts = 20
	killPause    = 25 * time.Millisecond
)

func (c *carrier) killProcess(p *record.Planned) outcome {
	for range killAttempts {
		struck, err := c.site.KillProcess(p.Target)
		if err != nil {
			return failedOutcome(err)
		}
		if struck {
			return outcome{hits: 1}
		}
		c.waitFor(killPause)
	}
	return failedOutcome(errNotRunning)
}

func (c *carrier) suspendProcess(p *record.Planned) outcome {
	struck, err := c.site.SuspendProcess(p.Target)
	if err != nil || !struck {
		return failedOutcome(firstError(err, errNotRunning))
	}
	c.waitFor(p.For)
	if _, err := c.site.ResumeProcess(p.Target); err != nil {
		return failedOutcome(err)
	}
	return outcome{hits: 1}
}

// firstError returns the first error that is not nil.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// rollingRestart restarts the processes of a service one after the other. The judge reads from each Exit how
// the process ended.
func (c *carrier) rollingRestart(p *record.Planned) outcome {
	ctx, cancel := c.finishContext()
	defer cancel()
	var o outcome
	for _, n := range []string{"-1", "-2"} {
		stopped, err := c.site.RestartProcess(ctx, p.Target+n)
		if err != nil {
			return failedOutcome(err)
		}
		o.hits++
		o.note += fmt.Sprintf("%s: code %d in %s ", p.Target+n, stopped.Code, stopped.Took.Round(time.Millisecond))
	}
	return o
}
