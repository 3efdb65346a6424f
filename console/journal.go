package console

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/sagamill/sagamill/operator"
)

const (
	entriesOnPage = 50

	// An export has at most maxExported entries, which it reads exportBatch at a time.
	maxExported = 100_000
	exportBatch = 500
	exportLimit = 10 * time.Minute
)

// A journalSearch is which entries a person looks for, as in the URL.
type journalSearch struct {
	In, By, Verb, Since, Until, Source string

	Key      string // of an instance
	Side, ID string // a message

	filter operator.ActivityFilter
}

func (s *journalSearch) fields() map[string]*string {
	return map[string]*string{"in": &s.In, "by": &s.By, "verb": &s.Verb, "since": &s.Since, "until": &s.Until, "of": &s.Source,
		"key": &s.Key, "side": &s.Side, "id": &s.ID}
}

// Padded returns the names of the conditions with a blank at an end.
func (s *journalSearch) Padded() []string { return listPadded(s.fields()) }

func parseJournalSearch(values url.Values, now time.Time) (*journalSearch, error) {
	s := &journalSearch{}
	readFields(s.fields(), values)
	s.filter = operator.ActivityFilter{By: s.By, Verb: s.Verb, Key: s.Key}
	if s.ID != "" {
		id, err := parseLetterID(s.ID)
		if err != nil {
			return nil, err
		}
		s.filter.IDs, s.filter.Side = []int64{id}, operator.Side(cmp.Or(s.Side, string(operator.Inbox)))
	}
	var err error
	if s.filter.Since, err = parseMoment(s.Since, now); err != nil {
		return nil, err
	}
	if s.filter.Until, err = parseMoment(s.Until, now); err != nil {
		return nil, err
	}
	if !slices.Contains([]string{"", string(operator.MessageActivity), string(operator.SagaActivity)}, s.Source) {
		return nil, badRequest(fmt.Sprintf("There is no journal of %.40q.", s.Source))
	}
	return s, nil
}

// momentLayouts are the forms of a moment. Without a zone it is UTC.
var momentLayouts = []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02"}

// parseMoment reads a moment, or how long ago it was.
func parseMoment(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range momentLayouts {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	age, err := parseAge(text)
	if err != nil {
		return time.Time{}, badRequest(fmt.Sprintf("The time %.40q is neither a moment such as 2026-01-31 12:00, which is UTC, nor an age such as 2h or 3d.", text))
	}
	return now.Add(-age), nil
}

func (s *journalSearch) query() url.Values { return queryFields(s.fields()) }

// A journalPoint is where a list goes on: behind an entry. Entries of one moment are in the order of their journals.
type journalPoint struct {
	At     time.Time `json:"at"`
	Source string    `json:"source"`
	ID     int64     `json:"id"`
}

// A journal is one of the journals of a place.
type journal struct {
	where  *place
	source operator.ActivitySource
}

func (j *journal) name() string { return j.where.Name + "|" + string(j.source) }

// A journalRow is an entry with its journal.
type journalRow struct {
	operator.Activity
	Where *place
	from  int // number of its journal
}

func listJournals(places []*place, source string) (all []journal) {
	for _, p := range places {
		for _, one := range []operator.ActivitySource{operator.MessageActivity, operator.SagaActivity} {
			if source == "" || source == string(one) {
				all = append(all, journal{p, one})
			}
		}
	}
	return all
}

// changesOnPage is how many entries of its messages the page of a letter or of a saga shows.
const changesOnPage = 20

// listChanges returns what people have done last to messages of one side of p. It is empty if the console may not read the
// journal.
func (c *Console) listChanges(ctx context.Context, p *place, side operator.Side, ids []int64) (rows []journalRow, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	reader, err := p.reader()
	if err != nil {
		return nil, err
	}
	found, err := reader.ListActivities(ctx, operator.MessageActivity, operator.ActivityFilter{Side: side, IDs: ids}, operator.ActivityMark{}, changesOnPage)
	if isDeniedError(err) {
		return nil, nil
	}
	for i := range found {
		c.redactActivity(&found[i])
		rows = append(rows, journalRow{Activity: found[i], Where: p})
	}
	return rows, err
}

// A journalReader reads the entries of several journals as one list, the newest first.
type journalReader struct {
	journals []journal
	filter   operator.ActivityFilter
	failed   func(journal, error) error // nil: the list goes on without this journal
	redact   func(*operator.Activity)
}

// read returns up to limit entries behind a point, and whether there are more.
func (j *journalReader) read(ctx context.Context, after *journalPoint, limit int) (rows []journalRow, more bool, err error) {
	current := -1
	if after != nil {
		if current = slices.IndexFunc(j.journals, func(one journal) bool { return one.name() == after.Source }); current < 0 {
			return nil, false, badRequest("The list goes on in a journal that is not here any more.")
		}
	}
	for i := range j.journals {
		one := j.journals[i]
		reader, err := one.where.reader()
		if err != nil {
			return nil, false, err
		}
		found, err := reader.ListActivities(ctx, one.source, j.filter, placeBehind(after, i, current), limit+1)
		if err != nil {
			if err := j.failed(one, err); err != nil {
				return nil, false, err
			}
			continue
		}
		for k := range found {
			rows = append(rows, journalRow{found[k], one.where, i})
		}
	}
	slices.SortFunc(rows, func(a, b journalRow) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.from, b.from), cmp.Compare(b.ID, a.ID))
	})
	shown := rows[:min(len(rows), limit)]
	for i := range shown {
		j.redact(&shown[i].Activity)
	}
	return shown, len(rows) > limit, nil
}

// placeBehind returns where journal i goes on behind a point in the current one. Of the moment of the point, earlier journals
// have no entry left, and later ones still have all.
func placeBehind(after *journalPoint, i, current int) operator.ActivityMark {
	switch {
	case after == nil:
		return operator.ActivityMark{}
	case i < current:
		return operator.ActivityMark{At: after.At, ID: math.MinInt64}
	case i > current:
		return operator.ActivityMark{At: after.At, ID: math.MaxInt64}
	}
	return operator.ActivityMark{At: after.At, ID: after.ID}
}

// pointOf returns the point behind a row.
func (j *journalReader) pointOf(row *journalRow) *journalPoint {
	return &journalPoint{row.At, j.journals[row.from].name(), row.ID}
}

// journalPages are the journal and its exports.
func (c *Console) journalPages() []*page {
	return []*page{
		{path: "journal", title: "Journal", inMenu: true, template: "journal.html", show: c.showJournal},
		{path: "journal.csv", title: "Journal", download: func(ctx context.Context, w http.ResponseWriter, r *request) error {
			return c.exportJournal(ctx, w, r, "text/csv; charset=utf-8", newCSVExport(w))
		}},
		{path: "journal.jsonl", title: "Journal", download: func(ctx context.Context, w http.ResponseWriter, r *request) error {
			return c.exportJournal(ctx, w, r, "application/jsonl", &jsonExport{json.NewEncoder(w)})
		}},
	}
}

// A journalView is what journal.html gets.
type journalView struct {
	placeChoice
	Search      *journalSearch
	Rows        []journalRow
	Next, First string
	Query       string // of the exports
	MaxExported int
	Failed      []placeProblem
}

func (c *Console) showJournal(ctx context.Context, r *request) (any, error) {
	search, err := parseJournalSearch(r.values, time.Now())
	if err != nil {
		return nil, err
	}
	chosen, all, err := c.choosePlaces(ctx, search.In)
	if err != nil {
		return nil, err
	}
	var after *journalPoint
	if err := decodePoint(r.values.Get("after"), &after); err != nil {
		return nil, err
	}
	v := &journalView{placeChoice: newPlaceChoice(search.In, all), Search: search, MaxExported: maxExported, Query: "?" + search.query().Encode()}
	reader := &journalReader{listJournals(chosen, search.Source), search.filter, func(j journal, err error) error {
		problem := c.explainError(ctx, err)
		if !slices.ContainsFunc(v.Failed, func(f placeProblem) bool { return f.Where == j.where && *f.Problem == *problem }) {
			v.Failed = append(v.Failed, placeProblem{j.where, problem})
		}
		return nil
	}, c.redactActivity}
	var more bool
	if v.Rows, more, err = reader.read(ctx, after, entriesOnPage); err != nil {
		return nil, err
	}
	if more {
		q := search.query()
		q.Set("after", encodePoint(reader.pointOf(&v.Rows[len(v.Rows)-1])))
		v.Next = "?" + q.Encode()
	}
	if after != nil {
		v.First = "?" + search.query().Encode()
	}
	return v, nil
}

// Which returns what an entry of messages picked, for people.
func (r *journalRow) Which() string {
	var fields map[string]string
	if len(r.What) == 0 || json.Unmarshal(r.What, &fields) != nil {
		return string(r.What)
	}
	var parts []string
	for name, value := range fields {
		parts = append(parts, name+" "+value)
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// OfKey reports whether the entry is a decision about an idempotency key. Its number is the attempt, and no message.
func (r *journalRow) OfKey() bool { return strings.HasPrefix(r.Verb, "keys ") }

// Numbers returns the ids of an entry of messages, those beyond the fifth as dots.
func (r *journalRow) Numbers() string {
	parts := make([]string, len(r.FirstIDs))
	for i, id := range r.FirstIDs {
		parts[i] = strconv.FormatInt(id, 10)
	}
	if r.Messages > len(parts) {
		parts = append(parts, "…")
	}
	return strings.Join(parts, ", ")
}

// An export writes entries into a file.
type export interface {
	begin() error
	write(*journalRow) error
	end(more bool) error // more: the file is at its limit, and there are more entries
}

// exportJournal writes all entries of a search into a file, up to maxExported. Once the file has begun, an error breaks
// the connection: a file that ends too early must not look complete.
func (c *Console) exportJournal(ctx context.Context, w http.ResponseWriter, r *request, contentType string, to export) error {
	search, err := parseJournalSearch(r.values, time.Now())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, exportLimit)
	defer cancel()
	var chosen []*place
	err = c.whileReading(ctx, func() error {
		chosen, _, err = c.choosePlaces(ctx, search.In)
		return err
	})
	if err != nil {
		return err
	}
	reader := &journalReader{listJournals(chosen, search.Source), search.filter, func(_ journal, err error) error { return err }, c.redactActivity}
	read := func(ctx context.Context, after *journalPoint, limit int) (rows []journalRow, more bool, err error) {
		err = c.whileReading(ctx, func() error {
			rows, more, err = reader.read(ctx, after, limit)
			return err
		})
		return rows, more, err
	}
	rows, more, err := read(ctx, nil, exportBatch)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", "sagamill-"+r.page.path))
	if r.http.Method == http.MethodHead {
		return nil
	}
	if err := copyJournal(ctx, w, reader.pointOf, read, rows, more, to); err != nil {
		if !errors.Is(err, errGone) {
			c.explainError(ctx, err)
		}
		panic(http.ErrAbortHandler)
	}
	return nil
}

// errGone reports that the browser has gone.
var errGone = errors.New("console: the browser has gone")

// A readBatch reads entries behind a point, as [journalReader.read] does.
type readBatch func(ctx context.Context, after *journalPoint, limit int) (rows []journalRow, more bool, err error)

func copyJournal(ctx context.Context, w http.ResponseWriter, pointOf func(*journalRow) *journalPoint, read readBatch, rows []journalRow, more bool, to export) (err error) {
	written := 0
	if err := to.begin(); err != nil {
		return errGone
	}
	for {
		extendDeadline(w, writeLimit)
		for i := range rows {
			if err := to.write(&rows[i]); err != nil {
				return errGone
			}
		}
		if written += len(rows); !more || written >= maxExported {
			break
		}
		if rows, more, err = read(ctx, pointOf(&rows[len(rows)-1]), min(exportBatch, maxExported-written)); err != nil {
			return err
		}
	}
	if to.end(more) != nil {
		return errGone
	}
	return nil
}

// exportColumns are the columns of the CSV file.
var exportColumns = []string{"at", "schema", "journal", "id", "by", "login", "verb", "why", "scope", "key", "path", "step", "messages", "first_ids", "what"}

type csvExport struct{ to *csv.Writer }

func newCSVExport(w io.Writer) *csvExport {
	to := csv.NewWriter(w)
	to.UseCRLF = true
	return &csvExport{to}
}

func (e *csvExport) begin() error { return e.to.Write(exportColumns) }

func (e *csvExport) write(r *journalRow) error {
	cells := []string{r.At.UTC().Format(time.RFC3339Nano), r.Where.Name, string(r.Source), strconv.FormatInt(r.ID, 10), r.By, r.DBUser, r.Verb, r.Why,
		r.Scope, r.Key, r.Path, r.Step, strconv.Itoa(r.Messages), r.Numbers(), string(r.What)}
	for i := range cells {
		cells[i] = quoteFormula(cells[i])
	}
	return e.to.Write(cells)
}

func (e *csvExport) end(more bool) error {
	if more {
		if err := e.to.Write([]string{fmt.Sprintf("There are more than %d entries: narrow the time.", maxExported)}); err != nil {
			return err
		}
	}
	e.to.Flush()
	return e.to.Error()
}

// formulaMarks begin a formula in a spreadsheet, the last four in one that takes full-width characters for others.
const formulaMarks = "=+-@\t\r\n" + "\uff1d\uff0b\uff0d\uff20"

// quoteFormula puts a quote before what a spreadsheet would run as a formula. A spreadsheet may take a semicolon or a tab
// for the end of a cell, and may leave out blanks and quotation marks, so what comes behind them is quoted too.
func quoteFormula(cell string) string {
	var quoted strings.Builder
	begins := true // of a cell, as some spreadsheet may see it
	for _, r := range cell {
		if begins && strings.ContainsRune(formulaMarks, r) {
			quoted.WriteByte('\'')
		}
		switch {
		case r == ';' || r == '\t' || r == '\n' || r == '\r':
			begins = true
		case unicode.IsSpace(r) || r == '"' || unicode.Is(unicode.Cf, r):
		default:
			begins = false
		}
		quoted.WriteRune(r)
	}
	return quoted.String()
}

type jsonExport struct{ to *json.Encoder }

// A jsonEntry is a line of the JSON file.
type jsonEntry struct {
	At       time.Time       `json:"at"`
	Schema   string          `json:"schema"`
	Journal  string          `json:"journal"`
	ID       int64           `json:"id"`
	By       string          `json:"by"`
	Login    string          `json:"login,omitempty"`
	Verb     string          `json:"verb"`
	Why      string          `json:"why"`
	Scope    string          `json:"scope,omitempty"`
	Key      string          `json:"key,omitempty"`
	Path     string          `json:"path,omitempty"`
	Step     string          `json:"step,omitempty"`
	Messages int             `json:"messages,omitempty"`
	FirstIDs []int64         `json:"first_ids,omitempty"`
	What     json.RawMessage `json:"what,omitempty"`
}

func (e *jsonExport) begin() error { return nil }

func (e *jsonExport) write(r *journalRow) error {
	return e.to.Encode(jsonEntry{r.At.UTC(), r.Where.Name, string(r.Source), r.ID, r.By, r.DBUser, r.Verb, r.Why, r.Scope, r.Key, r.Path, r.Step, r.Messages, r.FirstIDs, r.What})
}

func (e *jsonExport) end(more bool) error {
	if !more {
		return nil
	}
	return e.to.Encode(map[string]string{"error": fmt.Sprintf("There are more than %d entries: narrow the time.", maxExported)})
}
