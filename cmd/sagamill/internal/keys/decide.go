package keys

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
)

// A decision is the command line of keys complete or keys release.
type decision struct {
	*reference
	*cli.Consent
	who   *operator.Options
	token string
	ttl   cli.Age

	answer *operator.KeyAnswer // nil: the request may run again
	body   string              // a file
}

func completeKey(ctx context.Context, c *cli.Call) error {
	d := addDecision(c)
	d.answer = &operator.KeyAnswer{}
	c.Flags.IntVar(&d.answer.Status, "status", 0, "HTTP status of the answer; required")
	c.Flags.StringVar(&d.answer.ContentType, "content-type", "", "content type of the body; default: application/json if there is a body")
	c.Flags.StringVar(&d.body, "body", "", "read the body of the answer from this file; - means standard input; default: no body")
	return d.run(ctx, c)
}

func releaseKey(ctx context.Context, c *cli.Call) error { return addDecision(c).run(ctx, c) }

func addDecision(c *cli.Call) *decision {
	d := &decision{reference: addReference(c), Consent: c.AddConsentFlags(), who: c.AddOperatorFlags(), ttl: cli.Age(operator.DefaultKeyTTL)}
	c.Flags.Lookup("yes").Usage = "needed to decide; without -yes, the command only prints what it would do"
	c.Flags.StringVar(&d.token, "token", "", "decide only if this is still the run with this token, as keys show prints it")
	c.Flags.Var(&d.ttl, "ttl", "how long the record of the key lives from now on, such as 24h; default: 24h")
	return d
}

// run decides, or prints what it would do.
func (d *decision) run(ctx context.Context, c *cli.Call) error {
	if err := d.parseReference(c); err != nil {
		return err
	}
	if err := cmp.Or(d.checkFlags(c), d.readBody(c.Stdin), d.DecideChange(true)); err != nil {
		return err
	}
	targets, err := c.OpenTargets(ctx, cli.DefaultSchema)
	if err != nil {
		return err
	}
	defer targets.Close()
	of, found, err := d.findKey(ctx, targets)
	switch {
	case err != nil:
		return err
	case d.token != "" && !strings.EqualFold(d.token, found.Token):
		return fmt.Errorf("%w of this token: another run has begun, or somebody has decided", operator.ErrKeyDecided)
	case found.Refusal() != nil:
		return found.Refusal()
	}
	if d.Dry {
		return d.ConcludePreview(d.report(c, of, &found, "would "))
	}
	if err := d.settle(ctx, of, found); err != nil {
		return err
	}
	return d.report(c, of, &found, "")
}

func (d *decision) settle(ctx context.Context, of *cli.Target, found operator.KeyRecord) error {
	k, err := openKeys(of, d.who)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	if d.answer == nil {
		return k.Release(ctx, found, time.Duration(d.ttl))
	}
	return k.Complete(ctx, found, *d.answer, time.Duration(d.ttl))
}

// checkFlags returns an error that names the first flag that is missing or wrong.
func (d *decision) checkFlags(c *cli.Call) error {
	switch {
	case strings.TrimSpace(d.who.Why) == "":
		return errors.New("say why, with -why")
	case d.ttl <= 0:
		return errors.New("-ttl must be positive")
	case d.answer != nil && d.answer.Status == 0:
		return errors.New("say with -status which status a retry gets")
	}
	return c.CheckFilled([]string{"by", "token", "body", "content-type"})
}

// readBody reads the body of the answer, and returns an error for an answer that would be refused.
func (d *decision) readBody(stdin io.Reader) error {
	if d.answer == nil {
		return nil
	}
	if d.body != "" {
		from := stdin
		if d.body != "-" {
			file, err := os.Open(d.body)
			if err != nil {
				return fmt.Errorf("-body: %w", err)
			}
			defer file.Close()
			from = file
		}
		body, err := io.ReadAll(io.LimitReader(from, operator.MaxKeyAnswer+1))
		if err != nil {
			return fmt.Errorf("read the body: %w", err)
		}
		d.answer.Body, d.answer.ContentType = body, cmp.Or(d.answer.ContentType, "application/json")
	}
	return d.answer.Check()
}

// report prints what was decided or, with a begin, what would be.
func (d *decision) report(c *cli.Call, of *cli.Target, found *operator.KeyRecord, begin string) error {
	did, then := "released", "a retry runs its request again; the record lives"
	if d.answer != nil {
		did, then = "completed", fmt.Sprintf("a retry gets %s", d.describeAnswer())
	}
	if begin != "" {
		did = begin + strings.TrimSuffix(did, "d")
	}
	if *d.asJSON {
		j := newKey(of.Name, found, *d.plain)
		j.Did = did
		return cli.PrintJSON(c.Stdout, j)
	}
	if begin != "" {
		if err := d.printKey(c, found); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(c.Stdout, "%s the key %s: %s for %s\n", did, found.Digest, then, cli.FormatAge(time.Duration(d.ttl)))
	return err
}

func (d *decision) describeAnswer() string {
	a := d.answer
	if len(a.Body) == 0 {
		return fmt.Sprintf("%d without a body", a.Status)
	}
	return fmt.Sprintf("%d, %s, %d bytes, SHA-256 %x", a.Status, cli.FormatCell(a.ContentType), len(a.Body), sha256.Sum256(a.Body))
}
