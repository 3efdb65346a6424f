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
	if service == everybody {
		service = ""
	}
	ctx, cancel := c.finish()
	defer cancel()
	n, err := c.site.Terminate(ctx, service)
	return outcome{hits: n, err: err}
}

func (c *carrier) crash(*record.Planned) outcome {
	ctx, cancel := c.finish()
	defer cancel()
	return outcome{hits: 1, err: c.site.CrashPostgres(ctx)}
}

func (c *carrier) loseCommits(p *record.Planned) outcome {
	proxy, err := c.site.Loss(p.Target)
	if err != nil {
		return failed(err)
	}
	defer c.site.Trouble()()
	loss := commitloss.Commit
	if p.Fault == CommitReplyLost {
		loss = commitloss.Reply
	}
	commits, replies := proxy.Commits(), proxy.Replies()
	proxy.Lose(loss)
	c.wait(p.For)
	proxy.Lose(commitloss.Nothing)
	return outcome{hits: proxy.Commits() - commits + proxy.Replies() - replies}
}

func (c *carrier) strikeLink(p *record.Planned) outcome {
	link, err := c.site.Link(p.Target)
	if err != nil {
		return failed(err)
	}
	defer c.site.Trouble()()
	o := outcome{hits: link.Conns()} // and those that are made in the meantime, as far as they last
	switch p.Fault {
	case LinkSlow:
		var d time.Duration
		if d, o.err = time.ParseDuration(p.Args); o.err == nil {
			o.err = link.Slow(d)
		}
	case LinkNarrow:
		var rate int
		if _, o.err = fmt.Sscanf(p.Args, "%d KB/s", &rate); o.err == nil {
			o.err = link.Narrow(rate)
		}
	case LinkSwallow:
		o.err = link.Swallow()
	case LinkReset:
		o.err = link.Reset()
	case LinkCut:
		link.Cut()
	}
	if o.err == nil {
		o.hits = c.watch(p.For, o.hits, link.Conns)
	}
	return outcome{hits: o.hits, err: cmpErr(o.err, link.Mend())}
}

func (c *carrier) strikeGateway(p *record.Planned) outcome {
	g := c.site.Gateway()
	f := site.GatewayFault{Every: 1, Lose: p.Fault == GatewayLost}
	count, err := g.Refused, error(nil)
	switch p.Fault {
	case GatewaySlow:
		count = g.Delayed
		f.Delay, err = time.ParseDuration(p.Args)
	case GatewayLost:
		count = g.Lost
		fallthrough
	default:
		_, err = fmt.Sscanf(p.Args, "every %d", &f.Every)
	}
	if err != nil {
		return failed(err)
	}
	before := count()
	g.Strike(f)
	c.wait(p.For)
	g.Strike(site.GatewayFault{})
	return outcome{hits: count() - before}
}

func (c *carrier) closeConnections(*record.Planned) outcome {
	n, err := c.site.CloseConnections()
	return outcome{hits: n, err: err}
}

// recovery is how long the broker is left alone after a start. It serves before all of its
// quorum queues have a leader, and RabbitMQ 3.10 does not survive that one of them is
// deleted then: the crashes of what belongs to that queue end the supervisor of all.
const recovery = 3 * time.Second

func (c *carrier) restartBroker(p *record.Planned) (o outcome) {
	o.hits = 1
	if p.Fault == BrokerKill {
		o.err, o.note = c.site.KillBroker(), "what it knows of its queues was synced before"
	} else {
		o.err = c.site.StopBroker()
	}
	c.wait(recovery)
	return o
}

func (c *carrier) alarm(p *record.Planned) outcome {
	defer c.site.Trouble()()
	if err := c.site.Alarm(true); err != nil {
		return failed(cmpErr(err, c.site.Alarm(false)))
	}
	c.wait(p.For)
	return outcome{hits: 1, err: c.site.Alarm(false)}
}
