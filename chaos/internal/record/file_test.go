package record

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFilesReadAsWritten(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a.jsonl", "deep/b.jsonl.gz"} {
		dir := t.TempDir()
		w, err := CreateFile[Event](dir, name)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 1000 {
			w.AddRecord(Event{N: n, Fault: "<kill>", At: At(n)})
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		all, err := ReadAll[Event](dir, name)
		if err != nil || len(all) != 1000 || !cmp.Equal(all[999], Event{N: 999, Fault: "<kill>", At: 999}) {
			t.Fatalf("%s: %d records, %v", name, len(all), err)
		}
	}
}

// A run whose file was cut off must not be judged by the remaining part.
func TestACutFileIsAnError(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a.jsonl", "b.jsonl.gz"} {
		dir := t.TempDir()
		w, err := CreateFile[Event](dir, name)
		if err != nil {
			t.Fatal(err)
		}
		w.AddRecord(Event{Fault: "kill", Target: "somebody"})
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, whole[:len(whole)-9], 0o644); err != nil {
			t.Fatal(err)
		}
		if all, err := ReadAll[Event](dir, name); err == nil {
			t.Errorf("%s: %v is read from a cut file", name, all)
		}
	}
}
