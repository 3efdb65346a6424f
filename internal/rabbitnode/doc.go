// Package rabbitnode runs a RabbitMQ of the caller's own, which it may stop, kill
// and start again. The node has a port mapper, a cookie and files of its own and
// shares nothing with another on the machine. Both end with this process, however
// it ends.
package rabbitnode
