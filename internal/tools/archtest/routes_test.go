package archtest

import "testing"

// Over HTTP, a saga can be read or changed only with a principal.
func TestRoutes(t *testing.T) {
	t.Parallel()
	all, err := parsedModule()
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range checkRoutes(all, routes) {
		t.Error(wrong)
	}
}

func TestCheckRoutes(t *testing.T) {
	t.Parallel()
	const open, closed = "h", "api.Program.RequireTenant(h)"
	table := map[string]string{
		"examples/a GET /live": "probe", "examples/a POST /orders": "principal", "examples/a POST /pay": "simulated", "examples/a DELETE /all": "ledger",
	}
	for _, tt := range []struct {
		name, pattern, handler string
		want                   int
	}{
		{"as in the table", "GET /live", open, 3},
		{"with a principal", "POST /orders", closed, 3},
		{"without one", "POST /orders", open, 4},
		{"simulated", "POST /pay", open, 3},
		{"it changes something", "DELETE /all", open, 4},
		{"not in the table", "GET /debug", closed, 5},
	} {
		f, err := parseFile("examples/a/a.go", []byte("package p\n\nfunc f(m *M) { m.Handle(\""+tt.pattern+"\", "+tt.handler+") }\n"))
		if err != nil {
			t.Fatal(err)
		}
		if got := checkRoutes([]*file{f}, table); len(got) != tt.want { // the other routes are missing
			t.Errorf("%s: %q, want %d messages", tt.name, got, tt.want)
		}
	}
}
