// Package rabbitnode runs a private RabbitMQ, which the caller may stop, kill and start again. The node has a
// private port mapper, cookie and files. It shares nothing with other nodes on the machine, except that
// [Options.Cluster] lets it share a cookie with the nodes of its cluster. All processes end with this one, in
// any case.
package rabbitnode
