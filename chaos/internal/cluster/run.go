package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/chaos/internal/cluster/meter"
	"github.com/sagamill/sagamill/chaos/internal/site"
	"github.com/sagamill/sagamill/internal/testing/rabbitcluster"
)

// connections is the size of the database pool that the services and the harness share.
const connections = 48

// brokerConfig turns off logs that no check reads, to save processor time.
const brokerConfig = "log.connection.level = error\n"

// A run carries the plan out.
type run struct {
	opts     *Options
	work     string // for the servers' data
	progress io.Writer
	began    time.Time

	certificate *certificate
	postgres    *site.PrivatePostgres
	db          *pgxpool.Pool
	cluster     *rabbitcluster.Cluster // of the running stage
	partitions  string                 // how it handles partitions
	number      int                    // of the stage
	versions    []string               // of the servers
}

// messages is how many messages the load writes in a second.
func (o *Options) messages() int { return o.Rate + 2*o.Colours }

// RunCluster carries out the run that the options describe. The servers' data are below work; progress gets a
// line for each step. An error is a failure of the harness, and comes with a report of the stages before it.
// Failures of the product are in the report alone.
func RunCluster(ctx context.Context, opts *Options, work string, progress io.Writer) (report *Report, err error) {
	r := &run{opts: opts, work: work, progress: progress, began: time.Now()}
	plans, err := planStages(opts)
	if err != nil {
		return nil, err
	}
	if r.certificate, err = newCertificate(); err != nil {
		return nil, err
	}
	r.printLine("starting PostgreSQL")
	if r.postgres, err = site.OpenPostgres(ctx, work, filepath.Join(opts.Dir, "postgres.log")); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.postgres.Close()) }()
	if err := r.connectAdmin(ctx); err != nil {
		return nil, err
	}
	defer r.db.Close()
	report = &Report{Options: *opts}
	defer func() { report.Versions, report.Took = r.versions, time.Since(r.began) }()
	for _, plan := range plans {
		outcomes, err := r.runCluster(ctx, plan)
		report.Outcomes = append(report.Outcomes, outcomes...)
		if err != nil {
			return report, err
		}
	}
	return report, nil
}

func (r *run) connectAdmin(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(r.postgres.URL())
	if err != nil {
		return err
	}
	config.MaxConns = connections
	r.db, err = pgxpool.NewWithConfig(ctx, config)
	return err
}

// runCluster starts a cluster, runs its stages, and keeps the logs.
func (r *run) runCluster(ctx context.Context, plan []stage) (outcomes []*Outcome, err error) {
	r.partitions = plan[0].partitions
	r.printLine("starting a cluster with cluster_partition_handling = %s", r.partitions)
	r.cluster, err = rabbitcluster.Start(&rabbitcluster.Options{
		Parent: r.work, Config: brokerConfig, Partitions: r.partitions,
		Certificate: r.certificate.chain, Key: r.certificate.key,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.closeCluster()) }()
	if err := r.askVersions(ctx); err != nil {
		return nil, err
	}
	for i := range plan {
		o, err := r.startShift(ctx, &plan[i])
		if o != nil {
			outcomes = append(outcomes, o)
		}
		if err != nil {
			return outcomes, fmt.Errorf("%s: %w", &plan[i], err)
		}
	}
	return outcomes, nil
}

// askVersions reads the servers' versions, once.
func (r *run) askVersions(ctx context.Context) error {
	if r.versions != nil {
		return nil
	}
	var postgres string
	if err := r.db.QueryRow(ctx, "SHOW server_version").Scan(&postgres); err != nil {
		return err
	}
	rabbit, err := r.cluster.Node(0).Eval("rabbit_misc:version()")
	r.versions = []string{"PostgreSQL " + postgres, "RabbitMQ " + strings.Trim(rabbit, `"`)}
	return err
}

// closeCluster ends a cluster and keeps the logs of its nodes, which help to explain a run.
func (r *run) closeCluster() error {
	for i, n := range r.cluster.Nodes() {
		if text, err := os.ReadFile(n.Log()); err == nil {
			name := fmt.Sprintf("%s-node-%d.log", r.partitions, i)
			_ = os.WriteFile(filepath.Join(r.opts.Dir, name), text, 0o644)
		}
	}
	return r.cluster.Close()
}

func (r *run) startShift(ctx context.Context, st *stage) (*Outcome, error) {
	r.number++
	r.printLine("%s: at least %d orders and %d faults", st, st.orders, len(st.faults))
	sh := &shift{run: r, stage: st, meter: &meter.Meter{}}
	log, err := os.Create(sh.fileName(".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	o, err := sh.runStage(ctx, slog.New(slog.NewTextHandler(log, nil)))
	if err == nil {
		r.printLine("%s", o)
	}
	return o, err
}

// healsPartitions reports whether the broker ends partitions without an operator.
func (r *run) healsPartitions() bool { return r.partitions != rabbitcluster.Ignore }

// stageName returns the stage's name for its schema and its queues.
func (r *run) stageName(joint string) string { return fmt.Sprintf("stage%s%d", joint, r.number) }

// printLine prints a line of progress.
func (r *run) printLine(format string, args ...any) {
	fmt.Fprintf(r.progress, "%7.1f s  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}
