package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A rule holds for each file alone. check returns one message for each violation.
type rule struct {
	name  string
	check func(*file) []string
}

var rules = []rule{
	{"import direction", checkLayers},
	{"core without broker", checkCore},
	{"core without framework", checkFrameworks},
	{"core without Redis", checkRedis},
	{"leaf packages", checkLeaves},
	{"pure state machine", checkPure},
	{"test packages in tests", checkTestPackages},
	{"product without tests and tools", checkApart},
	{"forbidden import", checkForbiddenImports},
	{"no SafeToRetry", checkSafeToRetry},
	{"no sleeping test", checkSleep},
	{"slow tests are found", checkSlow},
	{"no formatted SQL", checkFormattedSQL},
	{"no init", checkInit},
	{"no listener", checkListeners},
	{"package name", checkName},
}

// layers says which packages of the module the non-test files of a tree may
// import, besides its own and internal ones; "*" is every public one. The
// longest matching tree counts. Test files may import what compiles: a test of
// the outbox needs a broker.
var layers = map[string][]string{
	".":                  {"idemkey", "outbox", "consumer", "saga", "rabbitmq", "inproc", "migrations", "telemetry", "cloudevents", "topology"},
	"migrations":         {},
	"idemkey":            {},
	"idemkey/idemredis":  {"idemkey"},
	"idemkey/idemhybrid": {"idemkey"},
	"outbox":             {},
	"consumer":           {"outbox"},
	"saga":               {"outbox", "consumer"},
	"operator":           {"idemkey", "outbox", "consumer", "saga", "migrations"}, // an overview says which migrations a schema has had
	"console":            {"operator"},
	"rabbitmq":           {"outbox"},
	"signing":            {"outbox"},
	"protobuf":           {"outbox"},
	"cloudevents":        {"outbox"},
	"topology":           {"outbox", "consumer", "saga", "cloudevents"},
	"inproc":             {"outbox"},
	"telemetry":          {"idemkey", "outbox", "consumer", "saga"},
	promexport:           {"telemetry"},
	"sagatest":           {"outbox", "consumer", "saga"},
	"cmd":                {"*"},
	"examples":           {"*"},
	"internal":           {},
	"internal/flow":      {"outbox"},
	consoleServer:        {"console"},
	"internal/sagarow":   {"outbox"},
	"internal/rediskey":  {"idemkey"},
	"internal/keysql":    {"idemkey"},
	"internal/testing":   {"*"},
	"internal/suites":    {"*"},
	"internal/tools":     {"*"},
}

// consoleServer serves the console of the command and of the demos.
const consoleServer = "internal/consoleserver"

// apart are the trees of internal that are not part of the product.
var apart = []string{"internal/testing", "internal/suites", "internal/tools", devservices}

// devservices starts servers for development, for tests and for demos. A service does not contain it.
const devservices = "internal/devservices"

// apartUsers are the trees outside of apart whose product files may import some of it, each with the allowed
// packages.
var apartUsers = map[string][]string{
	exampleHarness:        {devservices},
	"sagatest/servers":    {devservices},
	"cmd/sagamill":        {devservices},
	"idemkey/idemkeytest": {"internal/testing"},
}

// checkApart keeps test helpers, suites and tools out of the product.
func checkApart(f *file) []string {
	if f.isTest() || slices.ContainsFunc(apart, func(t string) bool { return isWithin(f.packagePath(), t) }) {
		return nil
	}
	var allowed []string
	for user, trees := range apartUsers {
		if isWithin(f.packagePath(), user) {
			allowed = trees
		}
	}
	var wrong []string
	for _, imported := range f.ownImports() {
		in := func(t string) bool { return isWithin(imported, t) }
		if slices.ContainsFunc(apart, in) && !slices.ContainsFunc(allowed, in) {
			wrong = append(wrong, fmt.Sprintf("%s: product code does not import %s", f.path, imported))
		}
	}
	return wrong
}

// exampleHarness is the harness of the examples' demos. exampleInternal are the internal packages that only
// the harness may import: a demo must run on a machine with nothing but Go, and programs agree about the
// settings that they reject. All examples may import the packages in exampleShared. A user could have written
// all code of an example and of exampleShared except the harness.
const (
	exampleHarness = "examples/internal/demo"
	exampleShared  = "examples/internal"
)

var exampleInternal = []string{"internal/backoff", "internal/brokerurls", consoleServer, devservices, "internal/pg", "internal/plaintext"}

// checkLayers enforces layers. A package that is missing in the table is an error too: its author decides its
// place.
func checkLayers(f *file) []string {
	var wrong []string
	tree, known := layerOf(f.packagePath())
	if !known {
		wrong = append(wrong, fmt.Sprintf("%s: archtest.layers does not say what %s may import", f.path, f.packagePath()))
	}
	for _, imported := range f.ownImports() {
		if !mayImport(f, tree, imported) {
			wrong = append(wrong, fmt.Sprintf("%s: %s may not import %s", f.path, f.packagePath(), imported))
		}
	}
	return wrong
}

// layerOf returns the entry of layers that pkg falls under.
func layerOf(pkg string) (tree string, known bool) {
	for dir := pkg; ; dir = path.Dir(dir) {
		if _, ok := layers[dir]; ok {
			return dir, dir != "." || pkg == "."
		}
	}
}

// mayImport reports whether f, which falls under tree, may import a package of
// the module.
func mayImport(f *file, tree, imported string) bool {
	if isWithin(imported, "examples") || isWithin(imported, "cmd") {
		return programOf(imported) == programOf(f.packagePath()) || isWithin(imported, exampleShared) && tree == "examples"
	}
	if f.isTest() || (tree != "." && isWithin(imported, tree)) {
		return true
	}
	if internal := isWithin(imported, "internal") || strings.Contains(imported, "/internal/"); internal {
		return tree != "examples" || f.packagePath() == exampleHarness && slices.ContainsFunc(exampleInternal, func(t string) bool { return isWithin(imported, t) })
	}
	allowed := layers[tree]
	return slices.Contains(allowed, "*") || slices.ContainsFunc(allowed, func(t string) bool { return isWithin(imported, t) })
}

// programOf returns the example or command that dir is part of: the first two
// elements.
func programOf(dir string) string {
	elements := strings.SplitN(dir, "/", 3)
	return path.Join(elements[:min(2, len(elements))]...)
}

// brokerLibraries are the libraries that only adapters may import. The core runs on any watermill Pub/Sub.
var brokerLibraries = []string{"github.com/rabbitmq/amqp091-go", "github.com/ThreeDotsLabs/watermill-amqp"}

// checkCore keeps those libraries out of the core's binaries.
func checkCore(f *file) []string {
	tree, _ := layerOf(f.packagePath())
	if f.isTest() || !slices.Contains([]string{"idemkey", "outbox", "consumer", "saga", "operator", "console", "signing"}, tree) {
		return nil
	}
	return f.importing("a core package builds without a broker library", func(name string) bool {
		return slices.ContainsFunc(brokerLibraries, func(l string) bool { return isWithin(name, l) })
	})
}

// frameworks are foreign trees, each with the packages that alone may import it. Only users import those
// packages, so that a user without gin does not compile gin.
var frameworks = map[string][]string{
	"github.com/gin-gonic/gin":            {"idemkey/idemgin"},
	"github.com/labstack/echo":            {"idemkey/idemecho"},
	"go.opentelemetry.io/otel":            {"telemetry", promexport},
	"go.opentelemetry.io/otel/sdk":        {promexport}, // an adapter uses the API
	"github.com/prometheus/client_golang": {promexport},
}

// promexport sets up OpenTelemetry for users who have not. The package of the module's root runs a whole service, and
// uses it as a program of a user would.
const (
	promexport  = "telemetry/promexport"
	rootPackage = "."
)

// checkFrameworks keeps those trees, and the packages that import them, out of all other packages. Examples,
// commands and the root package count as users.
func checkFrameworks(f *file) []string {
	user := f.packagePath() == rootPackage
	if f.isTest() || isWithin(f.packagePath(), "examples") || isWithin(f.packagePath(), "cmd") {
		return nil
	}
	var wrong []string
	for tree, leaves := range frameworks {
		if !slices.Contains(leaves, f.packagePath()) {
			wrong = append(wrong, f.importing("it is for "+strings.Join(leaves, " and ")+" alone", func(name string) bool {
				return isWithin(name, tree)
			})...)
		}
		if user || slices.Contains(leaves, f.packagePath()) {
			continue
		}
		wrong = append(wrong, f.importing("a leaf is for users", func(name string) bool {
			return slices.ContainsFunc(leaves, func(leaf string) bool { return isWithin(name, module+"/"+leaf) })
		})...)
	}
	return wrong
}

// redisPackages are the packages for the stores on Redis, and redisUsers the packages that may import them.
var (
	redisPackages = []string{"github.com/redis/go-redis", module + "/idemkey/idemredis", module + "/idemkey/idemhybrid", module + "/internal/rediskey"}
	redisUsers    = []string{"idemkey/idemredis", "idemkey/idemhybrid", "examples/gateway", "internal/rediskey", "internal/testing", "internal/suites"}
)

// checkRedis keeps Redis out of the binaries of services that do not use it, and out of commands and demos: to compile
// go-redis takes a quarter of the time of a whole demo.
func checkRedis(f *file) []string {
	user := func(t string) bool { return isWithin(f.packagePath(), t) }
	if f.isTest() || slices.ContainsFunc(redisUsers, user) {
		return nil
	}
	return f.importing("only a store on Redis depends on Redis", func(name string) bool {
		return slices.ContainsFunc(redisPackages, func(l string) bool { return isWithin(name, l) })
	})
}

// checkLeaves keeps dependencies out of the packages that all others build on.
func checkLeaves(f *file) []string {
	if f.isTest() || (f.packagePath() != "internal/stepkey" && f.packagePath() != "internal/sqlschema") {
		return nil
	}
	return f.importing("only the standard library and golang.org/x here", func(name string) bool {
		return !standard(name) && !isWithin(name, "golang.org/x")
	})
}

// impure are the trees of the standard library that give access to I/O, time or chance.
var impure = []string{
	"bufio", "context", "crypto/rand", "database", "embed", "io", "log", "math/rand", "net", "os", "plugin", "runtime", "sync", "syscall", "testing", "unsafe",
}

// checkPure keeps I/O, chance and the clock out of the transitions. Tests need none of them, and a decision
// depends only on stored state.
func checkPure(f *file) []string {
	if f.isTest() || f.packagePath() != "internal/machine" {
		return nil
	}
	wrong := f.importing("the state machine does no I/O", func(name string) bool {
		return !standard(name) && name != module+"/internal/stepkey" ||
			slices.ContainsFunc(impure, func(t string) bool { return isWithin(name, t) })
	})
	units := []string{"Duration", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"}
	return append(wrong, inspectNodes(f, func(s *ast.SelectorExpr) string {
		if x, ok := s.X.(*ast.Ident); !ok || x.Name != "time" || slices.Contains(units, s.Sel.Name) {
			return ""
		}
		return "the state machine has no clock: an event says when it is"
	})...)
}

// standard reports whether name is a package of the standard library: those
// have no dot in their first element.
func standard(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return !strings.Contains(first, ".")
}

// checkTestPackages keeps test support, and with it package testing, out of
// users' binaries.
func checkTestPackages(f *file) []string {
	if f.isTest() || strings.HasSuffix(path.Base(f.packagePath()), "test") {
		return nil
	}
	var wrong []string
	for _, imported := range f.ownImports() {
		if strings.HasSuffix(path.Base(imported), "test") {
			wrong = append(wrong, fmt.Sprintf("%s: %s is for tests", f.path, imported))
		}
	}
	return wrong
}

// forbiddenImports maps a package to the reason why no file may import it.
var forbiddenImports = map[string]string{
	"github.com/jackc/pgx/v5/stdlib": "database/sql repeats statements on pgx's word that they were not applied, and that word is not to be trusted",
}

// checkForbiddenImports applies to tests as well.
func checkForbiddenImports(f *file) []string {
	var wrong []string
	for _, name := range f.importPaths() {
		if why, ok := forbiddenImports[name]; ok {
			wrong = append(wrong, fmt.Sprintf("%s: imports %s: %s", f.path, name, why))
		}
	}
	return wrong
}

// checkSafeToRetry forbids pgconn.SafeToRetry, because pgx says "safe" about a COMMIT that was applied when
// its reply was lost. A test may show that it does.
func checkSafeToRetry(f *file) []string {
	if f.isTest() {
		return nil
	}
	return inspectNodes(f, func(s *ast.SelectorExpr) string {
		if s.Sel.Name != "SafeToRetry" {
			return ""
		}
		return "SafeToRetry is true for some applied commits: look the outcome up"
	})
}

// checkSleep forbids sleeping in tests: a test waits for an event. Under testing/synctest a sleep takes no
// time and is exact.
func checkSleep(f *file) []string {
	if !f.isTest() || slices.Contains(f.importPaths(), "testing/synctest") {
		return nil
	}
	return inspectNodes(f, func(s *ast.SelectorExpr) string {
		if !selectsName(s, "time", "Sleep") {
			return ""
		}
		return "a test waits for an event, not for a time"
	})
}

// sqlStart matches a format that begins with a statement. Keywords are in
// capitals here; prose is not.
var sqlStart = regexp.MustCompile(`^\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|TRUNCATE|CREATE|ALTER|DROP|WITH|LOCK)\s`)

// checkFormattedSQL finds statements whose text depends on values. A test may build one, because the name of
// its schema varies.
func checkFormattedSQL(f *file) []string {
	if f.isTest() {
		return nil
	}
	return inspectNodes(f, func(call *ast.CallExpr) string {
		s, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !selectsName(s, "fmt", "Sprintf") || len(call.Args) == 0 || !sqlStart.MatchString(literalValue(call.Args[0])) {
			return ""
		}
		return "SQL takes its values as parameters and its schema from sqlschema.Bind"
	})
}

// literalValue returns the value of a string literal, or of the first of several
// that are joined; "" for anything else.
func literalValue(e ast.Expr) string {
	if sum, ok := e.(*ast.BinaryExpr); ok {
		return literalValue(sum.X)
	}
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	value, _ := strconv.Unquote(lit.Value) // it has been parsed
	return value
}

// checkInit forbids init functions: code that runs on import cannot be configured, ordered or tested.
func checkInit(f *file) []string {
	return inspectNodes(f, func(d *ast.FuncDecl) string {
		if d.Recv != nil || d.Name.Name != "init" {
			return ""
		}
		return "no init functions"
	})
}

// checkName forbids package names without a meaning, because such packages attract unrelated code.
func checkName(f *file) []string {
	names := []string{"util", "utils", "common", "helper", "helpers", "types", "models", "misc"}
	name := strings.TrimSuffix(f.ast.Name.Name, "_test")
	if !slices.Contains(names, name) && !slices.Contains(names, path.Base(f.packagePath())) {
		return nil
	}
	return []string{fmt.Sprintf("%s: a package is named for its idea, not %s", f.path, name)}
}

// importing returns a message for each import that bad objects to.
func (f *file) importing(why string, bad func(string) bool) []string {
	var wrong []string
	for _, name := range f.importPaths() {
		if bad(name) {
			wrong = append(wrong, fmt.Sprintf("%s: imports %s: %s", f.path, name, why))
		}
	}
	return wrong
}

// inspectNodes returns the messages of judge about all nodes of type N.
func inspectNodes[N ast.Node](f *file, judge func(N) string) []string {
	var wrong []string
	ast.Inspect(f.ast, func(node ast.Node) bool {
		if n, ok := node.(N); ok {
			if message := judge(n); message != "" {
				wrong = append(wrong, f.placeOf(n)+": "+message)
			}
		}
		return true
	})
	return wrong
}

// selectsName reports whether s is pkg.name, as imported under its own name.
func selectsName(s *ast.SelectorExpr, pkg, name string) bool {
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg && s.Sel.Name == name
}
