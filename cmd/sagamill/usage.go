package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
)

// errUsage reports a command line without a known command.
var errUsage = errors.New("usage")

// asksHelp reports whether args ask for help, and about which words.
func asksHelp(args []string) (about []string, asked bool) {
	isFlag := func(arg string) bool { return slices.Contains([]string{"-h", "-help", "--help"}, arg) }
	if len(args) == 0 {
		return nil, false
	}
	if args[0] == "help" || isFlag(args[0]) {
		return slices.DeleteFunc(slices.Clone(args[1:]), isFlag), true
	}
	_, _, found := findCommand(args)
	end := len(args) - 1
	return args[:end], !found && isFlag(args[end])
}

// printHelp prints the flags of a command, or the commands that begin with these words.
func printHelp(about []string, stdout, stderr io.Writer) int {
	cmd, rest, found := findCommand(about)
	switch {
	case found && len(rest) == 0:
		return reportEnd(cli.NewCall(cmd, []string{"-h"}, stdout, stderr).RunCommand(context.Background()), about, stderr)
	case found || findUnknownWords(about) != "":
		return reportEnd(errUsage, about, stderr)
	}
	printUsage(stdout, about)
	return 0
}

// findCommand returns the command that args begin with, and what follows its words.
func findCommand(args []string) (cmd cli.Command, rest []string, found bool) {
	for _, cmd := range listCommands() {
		words := strings.Fields(cmd.Words)
		if len(args) >= len(words) && slices.Equal(args[:len(words)], words) {
			return cmd, args[len(words):], true
		}
	}
	return cli.Command{}, nil, false
}

// findUnknownWords returns args up to the first word that no command has there, "" if all
// that is wrong is that words are missing.
func findUnknownWords(args []string) string {
	for n, word := range args {
		if strings.HasPrefix(word, "-") {
			return ""
		}
		known := func(cmd cli.Command) bool {
			words := strings.Fields(cmd.Words)
			return len(words) > n && slices.Equal(words[:n+1], args[:n+1])
		}
		if !slices.ContainsFunc(listCommands(), known) {
			return strings.Join(args[:n+1], " ")
		}
	}
	return ""
}

// printUsage lists the commands that begin with the same words as args, or all.
func printUsage(w io.Writer, args []string) {
	var fit []cli.Command
	for n := len(args); len(fit) == 0; n-- {
		begin := strings.Join(args[:n], " ")
		for _, cmd := range listCommands() {
			if n == 0 || strings.HasPrefix(cmd.Words+" ", begin+" ") {
				fit = append(fit, cmd)
			}
		}
	}
	fmt.Fprintln(w, "usage:")
	for _, cmd := range fit {
		fmt.Fprintf(w, "  sagamill %-24s %s\n", cmd.Words, cmd.About)
	}
	fmt.Fprintln(w, "\nEach command prints its flags with -h. All but init, dev, broker, topology and version take -schema NAME and -database URL (default: DATABASE_URL), most of them several of both.")
}
