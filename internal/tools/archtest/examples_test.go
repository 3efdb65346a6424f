package archtest

import (
	"strings"
	"testing"
)

// Each exported function is in an Example of its package.
func TestEveryFunctionHasAnExample(t *testing.T) {
	t.Parallel()
	all, err := parsedModule()
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range checkExamples(all) {
		t.Error(wrong)
	}
}

func TestCheckExamples(t *testing.T) {
	t.Parallel()
	const code = "package shop\n\nfunc New() {}\n\nfunc Open() {}\n\nfunc (s *Shop) Close() {}\n\nfunc own() {}\n"
	example := func(pkg, name, body string) string {
		return "package " + pkg + "\n\nfunc " + name + "() { " + body + " }\n"
	}
	for name, tt := range map[string]struct{ path, example, want string }{
		"both":                       {"shop/a.go", example("shop_test", "Example", "shop.New(); shop.Open()"), ""},
		"one":                        {"shop/a.go", example("shop_test", "Example", "shop.New()"), "uses shop.Open"},
		"in a helper":                {"shop/a.go", example("shop_test", "Example", "shop.New(); open()") + "\nfunc open() { shop.Open() }\n", ""},
		"in a helper of tests":       {"shop/a.go", example("shop_test", "Example", "shop.New()") + "\nfunc TestShop() { shop.Open() }\n", "uses shop.Open"},
		"in a test":                  {"shop/a.go", example("shop_test", "TestShop", "shop.New(); shop.Open()"), "uses shop.New"},
		"from inside":                {"shop/a.go", example("shop", "Example", "shop.New(); shop.Open()"), "uses shop.New"},
		"of another package's":       {"shop/a.go", example("shop_test", "Example", "shop.New(); store.Open()"), "uses shop.Open"},
		"in another package":         {"mall/shop/a.go", example("shop_test", "Example", "shop.New(); shop.Open()"), "uses shop.New"},
		"a package that is internal": {"shop/internal/a.go", example("shop_test", "Example", ""), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all []*file
			for path, src := range map[string]string{tt.path: code, "shop/example_test.go": tt.example} {
				f, err := parseFile(path, []byte(src))
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, f)
			}
			got := strings.Join(checkExamples(all), "; ")
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("checkExamples = %q, want %q", got, tt.want)
			}
		})
	}
}
