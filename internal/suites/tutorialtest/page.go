// Package tutorialtest reads the tutorials in docs as programs: files to write, commands to run and their output. Its
// tests run them.
package tutorialtest

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// An Action is the purpose of a block of the page.
type Action string

// The actions.
const (
	Write  Action = "file"   // Text becomes the file Name: ```go file=main.go
	Run    Action = "run"    // Text is run by the shell, and must succeed: ```sh
	Serve  Action = "serve"  // Text is started, and goes on: ```sh serve
	Until  Action = "until"  // Text is run until it prints what it should: ```sh until
	Output Action = "output" // Text is what the command before has printed: ```output
)

// A Block is one fenced block of a page.
type Block struct {
	Line   int // of its first line of text
	Action Action
	Name   string
	Text   string
}

var fence = regexp.MustCompile("^```(\\w*)(?: (\\w+)(?:=(\\S+))?)?$")

// Blocks returns the blocks of page with an action, in order. A block without a language is for the reader
// only, and so are a picture and an excerpt: ```mermaid and ```go from=a/b.go.
func Blocks(page string) (all []Block, err error) {
	var open *Block
	for i, line := range strings.Split(page, "\n") {
		switch {
		case !strings.HasPrefix(line, "```"):
			if open != nil {
				open.Text += line + "\n"
			}
		case open != nil:
			if open.Action != "" {
				all = append(all, *open)
			}
			open = nil
		default:
			if open, err = begin(line); err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
			open.Line = i + 2
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the block is not closed", open.Line-1)
	}
	return all, nil
}

// begin reads the line that opens a block.
func begin(line string) (*Block, error) {
	parts := fence.FindStringSubmatch(line)
	if parts == nil {
		return nil, fmt.Errorf("cannot read %q", line)
	}
	language, word, name := parts[1], Action(parts[2]), parts[3]
	switch {
	case word == "" && (language == "" || language == "mermaid"), language == "go" && word == "from" && name != "":
		return &Block{}, nil
	case language == "sh" && word == "":
		return &Block{Action: Run}, nil
	case language == "sh" && (word == Serve || word == Until) && name == "":
		return &Block{Action: word}, nil
	case language == "output" && word == "":
		return &Block{Action: Output}, nil
	case word == Write && filepath.IsLocal(name):
		return &Block{Action: Write, Name: name}, nil
	}
	return nil, fmt.Errorf("%q says nothing that can be done", line)
}
