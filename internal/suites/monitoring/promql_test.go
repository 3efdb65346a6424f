package monitoring

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A selector is a metric in an expression, with its matchers.
type selector struct {
	metric   string
	matchers []matcher
}

// A matcher is a condition on a label. values are the alternatives of a regular expression
// that has nothing else in it.
type matcher struct {
	label  string
	values []string
}

// A query is what an expression asks for.
type query struct {
	selectors []selector
	grouping  []string // labels of by, on and group_left
}

var (
	promToken = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[A-Za-z_][A-Za-z0-9_:]*|[0-9.]+[a-z]*|=~|!~|!=|>=|<=|==|[^\s]`)
	promName  = regexp.MustCompile(`^[A-Za-z_]`)
)

// promKeywords are no metrics; neither is what stands before a parenthesis.
var promKeywords = []string{"and", "or", "unless", "bool", "offset"}

// promGrouping are followed by a list of labels.
var promGrouping = []string{"by", "on", "group_left", "group_right", "without", "ignoring"}

// parseQuery finds the selectors and labels of a PromQL expression, or of Grafana's
// label_values(selector, label). It takes more than PromQL: see checkGrammar.
func parseQuery(expr string) (q query, err error) {
	tokens := promToken.FindAllString(expr, -1)
	next := func() (token string) {
		if len(tokens) > 0 {
			token, tokens = tokens[0], tokens[1:]
		}
		return token
	}
	for len(tokens) > 0 {
		token := next()
		follows := ""
		if len(tokens) > 0 {
			follows = tokens[0]
		}
		switch {
		case slices.Contains(promGrouping, token):
			if next() != "(" {
				return q, fmt.Errorf("%s without labels", token)
			}
			for label := next(); label != ")"; label = next() {
				if label == "" {
					return q, fmt.Errorf("%s without an end", token)
				}
				if label != "," {
					q.grouping = append(q.grouping, label)
				}
			}
		case token == "label_values":
			last := len(tokens) - 2
			if last < 1 || tokens[last-1] != "," {
				return q, fmt.Errorf("label_values without a label")
			}
			q.grouping = append(q.grouping, tokens[last])
			tokens = tokens[:last-1]
		case token == "{", promName.MatchString(token) && follows != "(" && !slices.Contains(promGrouping, follows) && !slices.Contains(promKeywords, token):
			s := selector{metric: token}
			if token == "{" {
				s.metric = ""
			} else if follows == "{" {
				next()
			} else {
				q.selectors = append(q.selectors, s)
				continue
			}
			if s.matchers, err = parseMatchers(next); err != nil {
				return q, err
			}
			q.add(s)
		}
	}
	return q, nil
}

// add adds s, or what it has for a name among its matchers.
func (q *query) add(s selector) {
	at := slices.IndexFunc(s.matchers, func(m matcher) bool { return m.label == "__name__" })
	if at < 0 {
		q.selectors = append(q.selectors, s)
		return
	}
	for _, name := range s.matchers[at].values {
		q.selectors = append(q.selectors, selector{name, slices.Delete(slices.Clone(s.matchers), at, at+1)})
	}
}

func parseMatchers(next func() string) (all []matcher, err error) {
	for token := next(); token != "}"; token = next() {
		if token == "," {
			continue
		}
		operator, value := next(), next()
		if !promName.MatchString(token) || !slices.Contains([]string{"=", "=~", "!=", "!~"}, operator) || !strings.HasPrefix(value, `"`) {
			return nil, fmt.Errorf("no matcher: %s %s %s", token, operator, value)
		}
		m := matcher{label: token}
		for v := range strings.SplitSeq(strings.Trim(value, `"`), "|") {
			if v != "" && !strings.HasPrefix(v, "$") {
				m.values = append(m.values, v)
			}
		}
		all = append(all, m)
	}
	return all, nil
}

func TestParseQuery(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]query{
		`histogram_quantile(0.99, sum by (a, le) (rate(m_bucket[5m]))) > 1`:        {[]selector{{metric: "m_bucket"}}, []string{"a", "le"}},
		`max(x{s="d",t=~"e|f",u=~"$u"}[$__r]) / on (a) group_left (b) y == bool 0`: {[]selector{{"x", []matcher{{"s", []string{"d"}}, {"t", []string{"e", "f"}}, {label: "u"}}}, {metric: "y"}}, []string{"a", "b"}},
		`sum(x) by (a) and absent(y offset 5m) or z{w!=""} unless v`:               {[]selector{{metric: "x"}, {metric: "y"}, {"z", []matcher{{label: "w"}}}, {metric: "v"}}, []string{"a"}},
		`label_values(x, job)`:                       {[]selector{{metric: "x"}}, []string{"job"}},
		`label_values({__name__=~"x|y",a="b"}, job)`: {[]selector{{"x", []matcher{{"a", []string{"b"}}}}, {"y", []matcher{{"a", []string{"b"}}}}}, []string{"job"}},
	} {
		got, err := parseQuery(expr)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(query{}, selector{}, matcher{})); err != nil || diff != "" {
			t.Errorf("%s: %v\n(-want +got)\n%s", expr, err, diff)
		}
	}
	for _, expr := range []string{`x{a=b}`, `sum by (a`, `x{a`, `label_values(x)`} {
		if got, err := parseQuery(expr); err == nil {
			t.Errorf("%s: %v, want an error", expr, got)
		}
	}
}
