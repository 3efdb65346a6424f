// Package rabbitcluster runs three RabbitMQ nodes on this machine that form one cluster,
// and gives them faults: kills, freezes, restarts and partitions of the network between
// them.
//
// Each node has a private port mapper, written in Go (mapper.go). When a node asks its mapper for another
// node, the mapper answers with the port of a link (link.go), which forwards to that node. So each connection
// between two nodes passes a link, and a link can be cut in one direction or in both. Programs of an operator
// ask the mapper of the node that they address, and reach that node directly.
//
// A cut link behaves like a network that drops packets: both ends stay open, nothing
// arrives, and a new connection hangs. TCP keeps what was sent, so it arrives after the
// cut is mended, if the connection lives that long. Nodes give a connection up when they
// have heard nothing for [Options.NetTick].
//
// All processes end with this one, in any case.
package rabbitcluster
