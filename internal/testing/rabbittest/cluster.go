package rabbittest

import (
	"errors"
	"testing"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbitcluster"
	"github.com/sagamill/sagamill/internal/testing/rabbitnode"
)

// StartCluster starts three nodes that form a cluster, which ends with the test. A nil opts
// means the defaults. It skips the test on a machine without the server's binaries. It takes
// some ten seconds of two processors: let the parts of one test share it.
func StartCluster(t testing.TB, opts *rabbitcluster.Options) *rabbitcluster.Cluster {
	t.Helper()
	cluster, err := rabbitcluster.Start(opts)
	switch {
	case errors.Is(err, rabbitnode.ErrAbsent):
		needtest.Missing(t, "rabbitmq", "%v", err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	return cluster
}
