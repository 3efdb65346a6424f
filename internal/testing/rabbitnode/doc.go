// Package rabbitnode runs a RabbitMQ of the caller's own, which it may stop, kill
// and start again. The node has a port mapper, a cookie and files of its own and
// shares nothing with another on the machine; [Options.Cluster] lets it share a
// cookie with the nodes of its cluster. All processes end with this one, however
// it ends.
package rabbitnode
