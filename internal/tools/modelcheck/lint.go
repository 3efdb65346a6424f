package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

var (
	planted  = regexp.MustCompile(`\bBUG_[A-Z_]+\b`)
	planting = regexp.MustCompile(`(?m)^#(?:if|ifdef|ifndef|elif)\b.*$`)
	declared = regexp.MustCompile(`(?m)^bool ([a-z_]+) = true;\s+/\* (.*?) \*/$`)
	stated   = regexp.MustCompile(`^G\d+(, G\d+)*: .`)
	judged   = regexp.MustCompile(`\bMUST\(([a-z_]+),`)
)

// lintModels returns the contradictions between the lists and the models in dir. Without it, a misspelled
// name could count as a bug that was found, or as a property that holds.
func lintModels(dir string) error {
	var wrong []error
	files := map[string]*source{}
	for _, m := range models {
		if files[m.file] != nil {
			continue
		}
		s, err := readSource(filepath.Join(dir, m.file))
		if err != nil {
			return err
		}
		files[m.file] = s
		wrong = append(wrong, s.wrong...)
	}
	for _, b := range bugs {
		i := slices.IndexFunc(models, func(m model) bool { return m.name == b.model })
		if i < 0 {
			wrong = append(wrong, fmt.Errorf("bug %s: there is no such model", b))
			continue
		}
		wrong = append(wrong, files[models[i].file].takeBug(b)...)
	}
	for _, s := range files {
		wrong = append(wrong, s.leftOver()...)
	}
	return errors.Join(wrong...)
}

// A source is the declarations in a model's text, and how often the list of bugs names each.
type source struct {
	path       string
	bugs       map[string]int
	properties map[string]int
	wrong      []error
}

func readSource(path string) (*source, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := &source{path: path, bugs: map[string]int{}, properties: map[string]int{}}
	for _, line := range planting.FindAll(text, -1) {
		for _, define := range planted.FindAll(line, -1) {
			s.bugs[string(define)] = 0
		}
	}
	for _, p := range declared.FindAllSubmatch(text, -1) {
		if !stated.Match(p[2]) {
			continue // a variable, not a property
		}
		s.properties[string(p[1])] = 0
	}
	for _, p := range judged.FindAllSubmatch(text, -1) {
		if _, ok := s.properties[string(p[1])]; !ok {
			s.wrong = append(s.wrong, fmt.Errorf("%s: property %s is not declared with the guarantee that it stands for", path, p[1]))
		}
	}
	return s, nil
}

// takeBug notes that b is listed, and returns the names in b that do not exist.
func (s *source) takeBug(b bug) (wrong []error) {
	if _, ok := s.bugs[b.defineFlag()]; !ok {
		wrong = append(wrong, fmt.Errorf("bug %s: %s does not ask for %s", b, s.path, b.defineFlag()))
	}
	if _, ok := s.properties[b.breaks]; !ok && b.breaks != ends {
		wrong = append(wrong, fmt.Errorf("bug %s: %s has no property %s", b, s.path, b.breaks))
	}
	s.bugs[b.defineFlag()]++
	s.properties[b.breaks]++
	return wrong
}

// leftOver returns the bugs and the properties that the list of bugs does not name. No search looks for such
// a bug, and such a property may be vacuous.
func (s *source) leftOver() (wrong []error) {
	for define, n := range s.bugs {
		if n == 0 {
			wrong = append(wrong, fmt.Errorf("%s: %s is in no list", s.path, define))
		}
	}
	for property, n := range s.properties {
		if n == 0 {
			wrong = append(wrong, fmt.Errorf("%s: no bug breaks %s", s.path, property))
		}
	}
	return wrong
}
