// Package cluster is the chaos run on a cluster of RabbitMQ: a load of orders works on three
// nodes while faults strike one after the other, and each fault is measured.
//
// A run has clusters, one for each way to handle partitions. A cluster has stages: a separate shop (package
// shop), with queues of one kind. A stage has faults (package fault). Each fault strikes services that work
// normally and is ended; then the run waits for the recovery (package meter). After its last fault a stage is
// drained, stopped and audited (package audit).
package cluster
