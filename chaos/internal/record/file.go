package record

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// The files of a run's directory.
const (
	RunFile        = "run.json"
	ScheduleFile   = "schedule.jsonl"
	EventsFile     = "events.jsonl"
	ClientFile     = "client.jsonl.gz"
	InjectedFile   = "injected.jsonl.gz"
	SamplesFile    = "samples.jsonl"
	ChangesFile    = "changes.jsonl.gz"
	OutboxFile     = "outbox.jsonl.gz"
	FailpointsFile = "failpoints.log"
	FinalFile      = "final.json"
	TablesDir      = "tables"
	OutputDir      = "output"

	BrokerOutput = "rabbitmq.out" // below OutputDir: the broker's output
	BrokerLog    = "rabbitmq.log"
)

// A Writer appends records to a file, a line each, from any goroutine.
type Writer[T any] struct {
	mu    sync.Mutex
	file  *os.File
	lines *bufio.Writer
	zip   *gzip.Writer // nil: not compressed
	enc   *json.Encoder
	err   error
}

// CreateFile creates a file in dir. A name that ends in .gz is compressed.
func CreateFile[T any](dir, name string) (*Writer[T], error) {
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	w := &Writer[T]{file: file, lines: bufio.NewWriterSize(file, 1<<16)}
	var to io.Writer = w.lines
	if strings.HasSuffix(name, ".gz") {
		w.zip, _ = gzip.NewWriterLevel(w.lines, gzip.BestSpeed) // no error: the level is valid
		to = w.zip
	}
	w.enc = json.NewEncoder(to)
	w.enc.SetEscapeHTML(false)
	return w, nil
}

// AddRecord appends a record. Close returns the first failure.
func (w *Writer[T]) AddRecord(r T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.enc.Encode(r); w.err == nil {
		w.err = err
	}
}

// Close flushes and closes the file.
func (w *Writer[T]) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.zip != nil {
		w.err = errors.Join(w.err, w.zip.Close())
	}
	return errors.Join(w.err, w.lines.Flush(), w.file.Close())
}

// ReadFile yields the records of a file in dir. An unreadable record, such as a cut line, ends it with an
// error.
func ReadFile[T any](dir, name string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		file, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			yield(none, err)
			return
		}
		defer file.Close()
		var from io.Reader = bufio.NewReaderSize(file, 1<<16)
		if strings.HasSuffix(name, ".gz") {
			if from, err = gzip.NewReader(from); err != nil {
				yield(none, fmt.Errorf("%s: %w", name, err))
				return
			}
		}
		lines := json.NewDecoder(from)
		for n := 1; ; n++ {
			var r T
			switch err := lines.Decode(&r); {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(none, fmt.Errorf("%s: record %d: %w", name, n, err))
				return
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

// ReadAll returns the records of a file in dir.
func ReadAll[T any](dir, name string) (all []T, err error) {
	for r, err := range ReadFile[T](dir, name) {
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// WriteJSON writes v as a file in dir.
func WriteJSON(dir, name string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), append(text, '\n'), 0o644)
}

// ReadJSON reads a file in dir into v.
func ReadJSON(dir, name string, v any) error {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
