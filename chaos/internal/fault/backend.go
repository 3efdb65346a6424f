package fault

import (
	"fmt"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/chaos/internal/site"
	"github.com/sagamill/sagamill/internal/testing/commitloss"
)

func (c *carrier) terminate(p *record.Planned) outcome {
	service := p.Target
	if service == allServices {
		service = ""
	}
	ctx, cancel := c.finishContext()
	defer cancel()
	n, err := c.site.Terminate(ctx, service)
	return outcome{hits: n, err: err}
}

func (c *carrier) crashPostgres(*record.Planned) outcome {
	ctx, cancel := c.finishContext()
	defer cancel()
	return outcome{hits: 1, err: c.site.CrashPostgres(ctx)}
}

func (c *carrier) loseCommits(p *record.Planned) outcome {
	proxy, err := c.site.CommitLossProxy(p.Target)
	if err != nil {
		return failedOutcome(err)
	}
	defer c.site.BeginTrouble()()
	loss := commitloss.Commit
	if p.Fault == CommitReplyLost {
		loss = commitloss.Reply
	}
	commits, replies := proxy.Commits(), proxy.Replies()
	proxy.Lose(loss)
	c.waitFor(p.For)
	proxy.Lose(commitloss.Nothing)
	return outcome{hits: proxy.Commits() - commits + proxy.Replies() - replies}
}

func (c *carrier) strikeLink(p *record.Planned) outcome {
	link, err := c.site.FindLink(p.Target)
	if err != nil {
		return failedOutcome(err)
	}
	defer c.site.BeginTrouble()()
	o := outcome{hits: link.OpenConnections()} // later connections count too if they are still open at a look
	switch p.Fault {
	case LinkSlow:
		var d time.Duration
		if d, o.err = time.ParseDuration(p.Args); o.err == nil {
			o.err = link.SlowDown(d)
		}
	case LinkNarrow:
		var rate int
		if _, o.err = fmt.Sscanf(p.Args, "%d KB/s", &rate); o.err == nil {
			o.err = link.NarrowTo(rate)
		}
	case LinkSwallow:
		o.err = link.SwallowData()
	case LinkReset:
		o.err = link.ResetConnections()
	case LinkCut:
		link.CutConnections()
	}
	if o.err == nil {
		o.hits = c.watchCount(p.For, o.hits, link.OpenConnections)
	}
	return outcome{hits: o.hits, err: firstError(o.err, link.MendLink())}
}

func (c *carrier) strikeGateway(p *record.Planned) outcome {
	g := c.site.PaymentGateway()
	f := site.GatewayFault{Every: 1, Lose: p.Fault == GatewayLost}
	count, err := g.RefusedCalls, error(nil)
	switch p.Fault {
	case GatewaySlow:
		count = g.DelayedCalls
		f.Delay, err = time.ParseDuration(p.Args)
	case GatewayLost:
		count = g.LostAnswers
		fallthrough
	default:
		_, err = fmt.Sscanf(p.Args, "every %d", &f.Every)
	}
	if err != nil {
		return failedOutcome(err)
	}
	before := count()
	g.StrikeWith(f)
	c.waitFor(p.For)
	g.StrikeWith(site.GatewayFault{})
	return outcome{hits: count() - before}
}

func (c *carrier) closeConnections(*record.Planned) outcome {
	n, err := c.site.CloseConnections()
	return outcome{hits: n, err: err}
}

// recovery is the pause after a start of the broker, during which no fault strikes it. The broker serves before
// all of its quorum queues have a leader. If a queue is deleted then, RabbitMQ 3.10 fails: crashes of that
// queue's processes end the supervisor of all queues.
const recovery = 3 * time.Second

func (c *carrier) restartBroker(p *record.Planned) (o outcome) {
	o.hits = 1
	if p.Fault == BrokerKill {
		o.err, o.note = c.site.KillBroker(), "what it knows of its queues was synced before"
	} else {
		o.err = c.site.StopBroker()
	}
	c.waitFor(recovery)
	return o
}

func (c *carrier) raiseAlarm(p *record.Planned) outcome {
	defer c.site.BeginTrouble()()
	if err := c.site.SetMemoryAlarm(true); err != nil {
		return failedOutcome(firstError(err, c.site.SetMemoryAlarm(false)))
	}
	c.waitFor(p.For)
	return outcome{hits: 1, err: c.site.SetMemoryAlarm(false)}
}
