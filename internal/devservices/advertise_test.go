package devservices

import (
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What a program advertises is found as long as its run lives, and not by the programs that it has started.
func TestAdvertisedServicesAreFoundWhileTheyRun(t *testing.T) {
	t.Setenv(stepsVariable, "")
	t.Setenv("TMPDIR", t.TempDir())
	r := &run{log: io.Discard}
	s := &Services{DatabaseURL: "postgres://u:it's@h/d", AMQPURL: InProcess, directory: r.runDirectory}
	found := func() (mine []Advertised) {
		for _, a := range FindAdvertised() {
			if a.Program == t.Name() {
				mine = append(mine, a)
			}
		}
		return mine
	}
	if err := s.Advertise(t.Name()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Advertised{{t.Name(), s.DatabaseURL, s.AMQPURL}}, found()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got, want := s.Exports(), "export DATABASE_URL='postgres://u:it'\\''s@h/d'\nexport AMQP_URL=''\n"; got != want {
		t.Errorf("exports are %q, want %q", got, want)
	}
	t.Setenv(stepsVariable, "env")
	if got := found(); len(got) != 0 {
		t.Errorf("a program with services in its environment finds %v", got)
	}
	t.Setenv(stepsVariable, "")
	if err := r.dir.lock.Close(); err != nil { // as at the death of the program
		t.Fatal(err)
	}
	if got := found(); len(got) != 0 {
		t.Errorf("of a dead program there is %v", got)
	}
	_ = r.closeRun() // the lock is closed already
}
