package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const folder = "../../../model"

// Every bug of the list is in the text of its model, and every property there is broken by one.
func TestListAndModelsAgree(t *testing.T) {
	t.Parallel()
	if err := lintModels(folder); err != nil {
		t.Error(err)
	}
}

// Mistakes that would otherwise pass for a bug that was found, or for a property that holds.
func TestLintFindsWhatDoesNotAgree(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, file, old, new, want string }{
		{"a define that nothing asks for", "relay.pml", "#ifdef BUG_RETURNED_COUNTS", "#ifdef BUG_RETURNED_COUNT", "does not ask for BUG_RETURNED_COUNTS"},
		{"a bug that nobody looks for", "relay.pml", "#ifdef BUG_TWO_IN_FLIGHT", "#ifdef BUG_OTHER\n#endif\n#ifdef BUG_TWO_IN_FLIGHT", "BUG_OTHER is in no list"},
		{"a define in a comment alone", "request.pml", "#ifdef BUG_ANSWER_BEFORE_COMMIT", "#if 0 /*\nBUG_ANSWER_BEFORE_COMMIT */", "does not ask for BUG_ANSWER_BEFORE_COMMIT"},
		{"a property that no bug breaks", "saga.pml", "bool ended = true;", "bool extra = true;             /* G1: more */\nbool ended = true;", "no bug breaks extra"},
		{"a property without a guarantee", "order.pml", "bool no_ghosts = true;         /* G2: ", "bool no_ghosts = true;         /* ", "no_ghosts is not declared"},
		{"a property of another name", "consumer.pml", "bool undo_once = true;", "bool undo_twice = true;", "no property undo_once"},
	} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(folder)); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, tt.file)
		text, err := os.ReadFile(path)
		if err != nil || strings.Count(string(text), tt.old) == 0 {
			t.Fatalf("%s: %s has no %q (%v)", tt.name, tt.file, tt.old, err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), tt.old, tt.new)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := lintModels(dir); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
	}
}

func TestLintReadsAllModels(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(folder, "*.pml"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"check.pml": true}
	for _, m := range models {
		known[m.file] = true
	}
	for _, f := range files {
		if !known[filepath.Base(f)] {
			t.Errorf("%s is no model of the list", f)
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, m := range models {
		if seen[m.name] {
			t.Errorf("two models are called %s", m.name)
		}
		seen[m.name] = true
	}
	for _, b := range bugs {
		if seen[b.String()] {
			t.Errorf("two bugs are called %s", b)
		}
		seen[b.String()] = true
	}
}

func TestStory(t *testing.T) {
	t.Parallel()
	const replay = "ltl ends: <> ((over))\n" +
		"  1:\tproc  0 (writers:1) relay.pml:125 (state 1)\t[(!(((begun&(1<<1))!=0)))]\n" +
		"  1:\tproc  0 (writers:1) relay.pml:125 (state 2)\t[begun = (1<<1)]\n" +
		"  2:\tproc  2 (relay:1) relay.pml:90 (state 3)\t[else]\n" +
		"spin: trail ends after 2 steps\n#processes: 4\n\t\tbegun = 2\n"
	const want = "    1  writers 0        relay.pml:125      (!(((begun&(1<<1))!=0)))\n" +
		"    1  writers 0        relay.pml:125      begun = (1<<1)\n" +
		"       begun = 2\n"
	if got := tellStory(replay); got != want {
		t.Errorf("story:\n%s\nwant:\n%s", got, want)
	}
}
