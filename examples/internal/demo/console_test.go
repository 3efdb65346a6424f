package demo

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"os"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// The console of a demo shows the schemas of its services to whoever has the URL, and ends when it is told to.
func TestTheConsoleShowsTheServices(t *testing.T) {
	t.Parallel()
	database := pgtest.DirectDatabase(t)
	for _, schema := range []string{"flights", "hotels", "others"} {
		if err := migrations.Up(t.Context(), database, schema); err != nil {
			t.Fatal(err)
		}
	}
	p := &Program{Name: "trip-saga", Noun: "trip", Services: []string{"flight", "hotel"}, Schemas: map[string]string{"flight": "flights", "hotel": "hotels"}}
	s := &Settings{Program: p, Services: p.Services, DatabaseURL: database}
	var out bytes.Buffer
	r, err := s.startConsole(t.Context(), &out, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	address, found := strings.CutPrefix(strings.TrimSpace(out.String()), "console: ")
	if !found || !strings.Contains(address, "/?token=") {
		t.Fatalf("it prints %q", out.String())
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	text := fetchPage(t, browser, address)
	for part, want := range map[string]bool{">flights<": true, ">hotels<": true, ">others<": false, ">admin<": true} {
		if strings.Contains(text, part) != want {
			t.Errorf("the overview has %q: %t, want %t", part, !want, want)
		}
	}
	browser.CloseIdleConnections()
	if err := r.close(); err != nil {
		t.Errorf("close = %v", err)
	}
	if _, err := browser.Get(address); err == nil {
		t.Error("the console answers after its end")
	}
}

func fetchPage(t *testing.T, browser *http.Client, address string) string {
	t.Helper()
	response, err := browser.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s = %d, %v: %s", address, response.StatusCode, err, text)
	}
	return string(text)
}

// Services with databases of their own are databases of their own in the console.
func TestEachDatabaseHasAName(t *testing.T) {
	p := &Program{Name: "trip-saga", Services: []string{"flight", "hotel", "car"}, Schemas: map[string]string{"flight": "flights", "hotel": "hotels", "car": "cars"}}
	t.Setenv("HOTEL_DATABASE_URL", "postgres://127.0.0.1:1/hotels")
	s := &Settings{Program: p, Services: p.Services, DatabaseURL: "postgres://127.0.0.1:1/all"}
	r := &consoleRun{}
	defer r.closePools()
	databases, err := s.openConsoleDatabases(t.Context(), r)
	if err != nil || len(databases) != 2 || databases[0].Name != "flight" || strings.Join(databases[0].Schemas, " ") != "flights cars" ||
		databases[1].Name != "hotel" || strings.Join(databases[1].Schemas, " ") != "hotels" {
		t.Fatalf("databases = %v, %v", databases, err)
	}
	t.Setenv("HOTEL_DATABASE_URL", "postgres://:x")
	var setting *SettingError
	if _, err := s.openConsoleDatabases(t.Context(), &consoleRun{}); !errors.As(err, &setting) || strings.Contains(err.Error(), os.Getenv("HOTEL_DATABASE_URL")) {
		t.Errorf("a bad URL = %v", err)
	}
}
