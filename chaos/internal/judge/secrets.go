package judge

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// tablesOfFailures are the tables that keep failures and decisions. Their columns with a message's own content
// are not searched, since a message may hold any bytes.
var (
	tablesOfFailures = []string{"parked", "outbox_held", "saga_journal"}
	columnsOfBytes   = []string{"payload"}
)

// judgeSecrets searches for the run's secrets in places where they must not be.
func (c *run) judgeSecrets() ([]*Invariant, error) {
	said := &Invariant{ID: "S", Says: "no password and no card is in what a process prints, but for messages that a broker prints when it fails, in what one measures or answers, in what the database shows of its sessions, or in what is kept of a failure"}
	for _, op := range c.ops {
		said.checkThat(op.Leak == "", Offender{Key: op.Tenant + "/" + op.Key}, "an answer has %s", op.Leak)
	}
	for _, s := range c.samples {
		said.checkThat(s.Leak == "", Offender{}, "after %s the database's list of sessions has %s", s.At, s.Leak)
	}
	outputs, err := filepath.Glob(filepath.Join(c.dir, record.OutputDir, "*"))
	if err != nil {
		return nil, err
	}
	said.checkThat(len(outputs) > 0, Offender{}, "nothing of what the processes printed was kept")
	for _, name := range outputs {
		if err := checkOutput(said, name); err != nil {
			return nil, err
		}
	}
	for _, table := range tablesOfFailures {
		files, err := filepath.Glob(filepath.Join(c.dir, record.TablesDir, "*."+table+".jsonl.gz"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if err := checkRows(said, c.dir, file); err != nil {
				return nil, err
			}
		}
	}
	return []*Invariant{said}, nil
}

// checkOutput searches each line of a file.
func checkOutput(said *Invariant, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	look := record.LeakedNames
	if base := filepath.Base(name); base == record.BrokerOutput || base == record.BrokerLog {
		look = record.BrokerLeaks
	}
	lines := bufio.NewReader(file)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		leaks := look(line)
		said.checkThat(len(leaks) == 0, Offender{Key: filepath.Base(name)}, "line %d has %s", n, strings.Join(leaks, " and "))
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// checkRows searches each row of a table.
func checkRows(said *Invariant, dir, file string) error {
	name, err := filepath.Rel(dir, file)
	if err != nil {
		return err
	}
	for row, err := range record.ReadFile[map[string]json.RawMessage](dir, name) {
		if err != nil {
			return err
		}
		for column, value := range row {
			if slices.Contains(columnsOfBytes, column) {
				continue
			}
			leaks := record.LeakedNames(value)
			said.checkThat(len(leaks) == 0, Offender{Key: filepath.Base(name)}, "the column %s of row %s has %s", column, fmt.Sprint(string(row["id"])), strings.Join(leaks, " and "))
		}
	}
	return nil
}
