package monitoring

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A kind is what an expression of PromQL is.
type kind string

const (
	scalar kind = "scalar"
	vector kind = "instant vector"
	matrix kind = "range vector"
)

// promFunctions are those that are asked for, with the kinds of their arguments. Each
// returns a vector.
var promFunctions = map[string][]kind{
	"rate": {matrix}, "increase": {matrix}, "changes": {matrix}, "absent": {vector}, "histogram_quantile": {scalar, vector},
}

var promAggregations = []string{"sum", "max", "min", "avg", "count"}

// promOperators are by rising precedence.
var promOperators = [][]string{{"or"}, {"and", "unless"}, {"==", "!=", ">", "<", ">=", "<="}, {"+", "-"}, {"*", "/", "%"}}

const (
	setOperators = 2 // levels of promOperators that take vectors alone
	comparisons  = 2 // the level that makes no scalar without bool
)

var (
	promLabel    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	promNumber   = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)
	promDuration = regexp.MustCompile(`^([0-9]+(ms|[smhdwy]))+$`)
)

// grammar reads PromQL, as much of it as the dashboard and the rules have. What it takes,
// promtool takes. The first thing that is wrong ends it by a panic with a grammarError.
type grammar struct{ tokens []string }

type grammarError string

// checkGrammar returns what is wrong with an expression, or with Grafana's
// label_values(selector, label).
func checkGrammar(expr string) (err error) {
	g := &grammar{promToken.FindAllString(expr, -1)}
	defer func() {
		if wrong, ok := recover().(grammarError); ok {
			err = fmt.Errorf("%s, before %q", string(wrong), strings.Join(g.tokens, " "))
		}
	}()
	if g.peek() == "label_values" {
		g.next()
		g.want("(")
		g.is(vector, g.selector())
		g.want(",")
		g.match(promLabel)
		g.want(")")
	} else {
		g.is(vector, g.expression(0))
	}
	if len(g.tokens) > 0 {
		g.fail("more than an expression")
	}
	return nil
}

func (g *grammar) fail(format string, args ...any) { panic(grammarError(fmt.Sprintf(format, args...))) }

// peek returns the next token, or nothing at the end.
func (g *grammar) peek() string {
	if len(g.tokens) == 0 {
		return ""
	}
	return g.tokens[0]
}

func (g *grammar) next() string {
	token := g.peek()
	g.tokens = g.tokens[min(1, len(g.tokens)):]
	return token
}

func (g *grammar) want(token string) {
	if got := g.next(); got != token {
		g.fail("%q, want %q", got, token)
	}
}

func (g *grammar) match(form *regexp.Regexp) {
	if got := g.next(); !form.MatchString(got) {
		g.fail("%q, want %s", got, form)
	}
}

func (g *grammar) is(want, got kind) {
	if got != want {
		g.fail("a %s, want a %s", got, want)
	}
}

// expression reads operators of level and above.
func (g *grammar) expression(level int) kind {
	if level == len(promOperators) {
		return g.operand()
	}
	left := g.expression(level + 1)
	for slices.Contains(promOperators[level], g.peek()) {
		operator := g.next()
		asNumber := g.peek() == "bool"
		if asNumber {
			g.next()
		}
		if asNumber && level != comparisons {
			g.fail("bool behind %s", operator)
		}
		matched := g.matching()
		right := g.expression(level + 1)
		scalars := left == scalar && right == scalar
		switch {
		case left == matrix || right == matrix, level < setOperators && (left == scalar || right == scalar),
			matched && (left == scalar || right == scalar), level == comparisons && scalars && !asNumber:
			g.fail("%s %s %s", left, operator, right)
		case !scalars:
			left = vector
		}
	}
	return left
}

// matching reads how the two sides of an operator are matched, and reports whether it is said.
func (g *grammar) matching() bool {
	if g.peek() != "on" && g.peek() != "ignoring" {
		return false
	}
	g.next()
	g.labels()
	if g.peek() == "group_left" || g.peek() == "group_right" {
		g.next()
		if g.peek() == "(" {
			g.labels()
		}
	}
	return true
}

func (g *grammar) labels() {
	g.want("(")
	for g.match(promLabel); g.peek() == ","; g.match(promLabel) {
		g.next()
	}
	g.want(")")
}

func (g *grammar) operand() kind {
	token := g.peek()
	switch {
	case token == "(":
		g.next()
		k := g.expression(0)
		g.want(")")
		return k
	case promNumber.MatchString(token):
		g.next()
		return scalar
	case slices.Contains(promAggregations, token):
		g.next()
		grouped := g.grouping()
		g.arguments([]kind{vector})
		if !grouped {
			g.grouping()
		}
		return vector
	case promFunctions[token] != nil:
		g.next()
		g.arguments(promFunctions[token])
		return vector
	default:
		return g.selector()
	}
}

// grouping reads by or without, and reports whether there was one.
func (g *grammar) grouping() bool {
	found := g.peek() == "by" || g.peek() == "without"
	if found {
		g.next()
		g.labels()
	}
	return found
}

func (g *grammar) arguments(kinds []kind) {
	g.want("(")
	for i, k := range kinds {
		if i > 0 {
			g.want(",")
		}
		g.is(k, g.expression(0))
	}
	g.want(")")
}

// selector reads a metric with its matchers, range and offset.
func (g *grammar) selector() kind {
	if g.peek() != "{" {
		g.match(promLabel)
	}
	if g.peek() == "{" {
		g.next()
		if _, err := parseMatchers(g.next); err != nil {
			g.fail("%v", err)
		}
	}
	k := vector
	if strings.HasPrefix(g.peek(), "[") {
		k = matrix
		if in := strings.Trim(g.next(), "[]"); in != "$__rate_interval" && !promDuration.MatchString(in) {
			g.fail("the range %q", in)
		}
	}
	if g.peek() == "offset" {
		g.next()
		g.match(promDuration)
	}
	return k
}

func TestGrammar(t *testing.T) {
	t.Parallel()
	for _, expr := range []string{
		`x`, `(x)`, `{__name__=~"x|y"}`, `sum by (a, le) (rate(m_bucket[5m]))`, `sum(x) by (a) and absent(y offset 5m) or z{w!=""} unless v`,
		`histogram_quantile(0.99, sum by (le) (rate(m[$__rate_interval]))) > 1`, `max(x) / on (a) group_left (b) y == bool 0`,
		`1 + 2 * x`, `label_values(x{a="b"}, job)`,
	} {
		if err := checkGrammar(expr); err != nil {
			t.Errorf("%s: %v", expr, err)
		}
	}
	for _, expr := range []string{
		``, `1`, `x y`, `x +`, `sum by (rate(x[5m]))`, `sum by a (x)`, `sum by (a) by (b) (x)`, `sum(x`, `sum(x))`, `rate(x)`, `sum(x[5m])`, `x[5m]`, `x[5 m]`, `x[$interval]`,
		`histogram_quantile(x, y)`, `histogram_quantile(0.9)`, `x and 1`, `x > on (a) 1`, `1 > 2`, `x + bool y`, `x{a=b}`, `x{a="b"`, `rates(x[5m])`, `x offset y`,
		`label_values(x)`, `label_values(x, )`, `label_values(x[5m], a)`,
	} {
		if err := checkGrammar(expr); err == nil {
			t.Errorf("%s is taken", expr)
		}
	}
}
