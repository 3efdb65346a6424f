package archtest

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

// routes are all HTTP routes of the module's programs, each with its class of callers:
//
//   - principal: a caller that names a principal. It sees only the data of that principal.
//   - probe: any caller. The answer shows the state of the process, or its kinds of messages, and no saga.
//   - simulated: any caller that reaches the listener. It simulates an external system,
//     which in production would authenticate its callers.
//   - ledger: likewise. It lets the examples check that nothing was done twice. Programs
//     listen on loopback by default. With another address they warn that every caller that
//     reaches it may read the ledger.
var routes = map[string]string{
	". GET /healthz":  "probe",
	". GET /metrics":  "probe",
	". GET /readyz":   "probe",
	". GET /topology": "probe",
	"cmd/sagamill/internal/dev/newservice GET /":                  "probe",
	"cmd/sagamill/internal/dev/newservice POST /orders":           "simulated", // its tenant is a header
	"examples/quickstart GET /":                                   "probe",
	"examples/quickstart POST /orders":                            "simulated", // its tenant is a header
	"examples/gateway GET /events":                                "simulated", // these two are behind the gateway's own check of API keys
	"examples/gateway POST /charges":                              "simulated",
	"examples/internal/demo GET /healthz":                         "probe",
	"examples/internal/demo GET /metrics":                         "probe",
	"examples/internal/demo GET /readyz":                          "probe",
	"examples/order-saga/internal/gateway GET /charges/{key}":     "simulated",
	"examples/order-saga/internal/gateway GET /ledger":            "ledger",
	"examples/order-saga/internal/gateway GET /refunds/{key}":     "simulated",
	"examples/order-saga/internal/gateway POST /charges":          "simulated",
	"examples/order-saga/internal/gateway POST /refunds":          "simulated",
	"examples/order-saga/internal/order GET /orders/{id}":         "principal",
	"examples/order-saga/internal/order POST /orders":             "principal",
	"examples/trip-saga/internal/booking GET /ledger/":            "ledger", // with the service's name
	"examples/trip-saga/internal/mail GET /ledger/mail":           "ledger",
	"examples/trip-saga/internal/ticketing GET /ledger/ticketing": "ledger",
	"examples/trip-saga/internal/trip DELETE /trips/{id}":         "principal",
	"examples/trip-saga/internal/trip GET /ledger/trip":           "ledger",
	"examples/trip-saga/internal/trip GET /trips/{id}":            "principal",
	"examples/trip-saga/internal/trip POST /trips":                "principal",
}

// serving are the trees whose product files may listen: the root package, which runs the HTTP server of a service, the
// server of the console behind a token,
// programs of the examples, tools that measure and break them, and proxies of tests.
var serving = []string{
	rootPackage, "examples", "bench", "chaos", consoleServer,
	"internal/testing/certtest", "internal/testing/commitloss", "internal/devservices", "internal/testing/proctest", "internal/testing/rabbitcluster", "internal/testing/rabbitnode", "internal/testing/rabbittest", "internal/testing/redistest",
}

// listening are the functions that open a port, by package.
var listening = map[string][]string{
	"net":  {"Listen", "ListenTCP", "ListenUDP", "ListenIP", "ListenUnix", "ListenUnixgram", "ListenPacket", "ListenConfig", "FileListener"},
	"http": {"ListenAndServe", "ListenAndServeTLS", "Serve", "ServeTLS", "Server", "Handle", "HandleFunc"},
	"tls":  {"Listen", "NewListener"},
}

// profilers are the packages that add routes to http.DefaultServeMux when they are imported.
var profilers = []string{"net/http/pprof", "expvar"}

// checkListeners keeps ports out of the library and the operator's command. Their functions are for code and
// for holders of database access, never for callers that reach a port.
func checkListeners(f *file) []string {
	wrong := f.importing("it serves to everybody what no client should see", func(name string) bool { return slices.Contains(profilers, name) })
	if f.isTest() || slices.ContainsFunc(serving, func(tree string) bool { return isWithin(f.packagePath(), tree) }) {
		return wrong
	}
	return append(wrong, inspectNodes(f, func(s *ast.SelectorExpr) string {
		x, ok := s.X.(*ast.Ident)
		if !ok || !slices.Contains(listening[x.Name], s.Sel.Name) {
			return ""
		}
		return fmt.Sprintf("%s.%s: only programs of users listen", x.Name, s.Sel.Name)
	})...)
}

// routesOf returns the routes that f adds to a mux, and whether each is behind
// api.Program.RequireTenant.
func routesOf(f *file) map[string]bool {
	found := make(map[string]bool)
	if f.isTest() || isWithin(f.packagePath(), "bench") || isWithin(f.packagePath(), "chaos") || isWithin(f.packagePath(), "internal") {
		return found
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 2 {
			return true
		}
		s, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || s.Sel.Name != "Handle" && s.Sel.Name != "HandleFunc" {
			return true
		}
		pattern := literalValue(call.Args[0])
		if pattern == "" && !isWithin(f.packagePath(), "examples") && !isWithin(f.packagePath(), "cmd") {
			return true // another Handle, such as that of log records
		}
		found[f.packagePath()+" "+pattern] = authenticated(call.Args[1]) // a pattern that is not a literal is in no table
		return true
	})
	return found
}

// authenticated reports whether handler answers only requests that name a principal.
func authenticated(handler ast.Expr) bool {
	call, ok := handler.(*ast.CallExpr)
	if !ok {
		return false
	}
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "RequireTenant" {
		return false
	}
	program, ok := s.X.(*ast.SelectorExpr)
	return ok && selectsName(program, "api", "Program")
}

// checkRoutes returns the mistakes in the routes in files. All routes are in the table, routes for principals
// ask for one, and other routes change simulated state only.
func checkRoutes(files []*file, table map[string]string) []string {
	var wrong []string
	seen := make(map[string]bool)
	for _, f := range files {
		for route, guarded := range routesOf(f) {
			seen[route] = true
			switch who := table[route]; {
			case who == "":
				wrong = append(wrong, fmt.Sprintf("%s: archtest.routes does not say who may ask for %s", f.path, route))
			case guarded != (who == "principal"):
				wrong = append(wrong, fmt.Sprintf("%s: %s is for %s, and is behind api.Program.RequireTenant: %t", f.path, route, who, guarded))
			case !guarded && who != "simulated" && !strings.Contains(route, " GET /"):
				wrong = append(wrong, fmt.Sprintf("%s: %s changes something without a principal", f.path, route))
			}
		}
	}
	for route := range table {
		if !seen[route] {
			wrong = append(wrong, "archtest.routes: there is no "+route)
		}
	}
	return wrong
}
