package rabbitcluster

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/internal/testing/rabbitnode"
)

// Size is the number of nodes of a cluster: the smallest that survives the failure of one.
const Size = 3

// DefaultNetTick is the default of [Options.NetTick].
const DefaultNetTick = 4 * time.Second

// The values of [Options.Partitions].
const (
	Ignore        = "ignore"         // both sides of a partition go on
	PauseMinority = "pause_minority" // a node that sees no majority stops its broker
	Autoheal      = "autoheal"       // when the partition ends, the smaller side restarts
)

// Options are the settings of a [Cluster]. The zero value works.
type Options struct {
	// Parent is the directory for the directories of the nodes. Other accounts must be able to pass through
	// it. Default: os.TempDir()
	Parent string

	// Config has more lines of rabbitmq.conf for all nodes. Default: none.
	Config string

	// Partitions is what the broker does about a partition. Default: [Ignore], as is
	// RabbitMQ's.
	Partitions string

	// NetTick is how long nodes keep a connection on which they receive nothing, plus or minus a quarter.
	// Whole seconds. Default: [DefaultNetTick]; RabbitMQ has 60 s.
	NetTick time.Duration

	// Plugins, of those that come with the server, are enabled. Default: none.
	Plugins []string

	// Certificate and Key, in PEM, make each node also listen for TLS. Default: none.
	Certificate, Key []byte

	// ClientAuthority, in PEM, makes nodes refuse TLS clients without a certificate of this authority.
	// Default: clients need none.
	ClientAuthority []byte
}

// A Cluster is three nodes that know each other. Nodes are named by their index, from 0.
// Methods may be called by several goroutines; changes of one node wait for each other.
type Cluster struct {
	nodes    [Size]*Node
	autoheal bool
	network  *network
	links    [Size][Size]*link // from, to; nil: from a node to itself
}

// Start starts a cluster and returns when each node sees all others. The error is [rabbitnode.ErrAbsent] if
// RabbitMQ is not installed. After an error nothing runs.
func Start(opts *Options) (*Cluster, error) {
	if opts == nil {
		opts = &Options{}
	}
	c := &Cluster{network: newNetwork(), autoheal: opts.Partitions == Autoheal}
	err := c.buildNodes(opts)
	if err == nil {
		err = c.formCluster()
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// formCluster starts the nodes one after the other. All at once, a node of RabbitMQ 4 that starts before the first forms
// a cluster of its own, and a node of 3.10 that joins one that is still starting gets its feature flags half set.
func (c *Cluster) formCluster() error {
	for i := range c.nodes {
		if err := c.Start(i); err != nil {
			return err
		}
	}
	return c.AwaitAll()
}

// buildNodes makes the mappers, the links and the directories of the nodes.
func (c *Cluster) buildNodes(opts *Options) error {
	prefix, cookie := "t-"+strings.ToLower(rand.Text()[:14])+"-", rand.Text()
	for i := range c.nodes {
		n := &Node{name: prefix + strconv.Itoa(i), index: i, cluster: c}
		c.nodes[i] = n
		var err error
		if n.mapper, err = newMapper(n.lookUpPeer, n.peerRegistrations); err != nil {
			return fmt.Errorf("rabbitcluster: make a port mapper: %w", err)
		}
		if n.process, err = rabbitnode.New(nodeOptions(opts, prefix, cookie, i, n.mapper.listenPort())); err != nil {
			return err
		}
	}
	for from := range Size {
		for to := range Size {
			if from == to {
				continue
			}
			var err error
			if c.links[from][to], err = listenForLink(c.network, from, to, c.nodes[to].distribution); err != nil {
				return fmt.Errorf("rabbitcluster: start a link: %w", err)
			}
		}
	}
	for _, n := range c.nodes {
		n.mapper.startMapper()
	}
	return nil
}

// nodeOptions returns the options of the node called prefix with its index.
func nodeOptions(opts *Options, prefix, cookie string, index, mapper int) *rabbitnode.Options {
	config := fmt.Sprintf("cluster_partition_handling = %s\n", cmp.Or(opts.Partitions, Ignore))
	if index > 0 { // the first node forms the cluster, the others join it
		config += fmt.Sprintf("cluster_formation.peer_discovery_backend = classic_config\n"+
			"cluster_formation.classic_config.nodes.1 = %s0@localhost\n"+
			"cluster_formation.classic_config.nodes.2 = %[1]s%[2]d@localhost\n", prefix, index)
	}
	tick := cmp.Or(opts.NetTick, DefaultNetTick)
	return &rabbitnode.Options{
		Parent: opts.Parent, Config: config + opts.Config, Plugins: opts.Plugins,
		Certificate: opts.Certificate, Key: opts.Key, ClientAuthority: opts.ClientAuthority,
		Cluster: &rabbitnode.ClusterOptions{
			Name: prefix + strconv.Itoa(index), Cookie: cookie, Mapper: mapper,
			Kernel: fmt.Sprintf("-kernel net_ticktime %d", max(1, int(tick/time.Second))),
		},
	}
}

// Nodes returns the cluster's nodes, running or not.
func (c *Cluster) Nodes() []*Node { return c.nodes[:] }

// Node returns the node with that index.
func (c *Cluster) Node(i int) *Node { return c.nodes[i] }

// URLs returns the URLs of the nodes, which stay the same after a restart.
func (c *Cluster) URLs() []string {
	urls := make([]string, 0, Size)
	for _, n := range c.nodes {
		urls = append(urls, n.URL())
	}
	return urls
}

// Close kills all nodes and removes their files.
func (c *Cluster) Close() error {
	var errs []error
	for _, n := range c.nodes {
		if n != nil && n.process != nil {
			errs = append(errs, n.closeNode())
		}
	}
	c.network.closeNetwork()
	for _, row := range c.links {
		for _, l := range row {
			if l != nil {
				l.closeLink()
			}
		}
	}
	for _, n := range c.nodes {
		if n != nil && n.mapper != nil {
			n.mapper.closeMapper()
		}
	}
	return errors.Join(errs...)
}
