package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A dashboard is what of Grafana's format is looked at.
type dashboard struct {
	UID           string
	SchemaVersion int
	Panels        []panel
	Templating    struct{ List []variable }
}

type panel struct {
	ID         int
	Type       string
	Title      string
	Datasource struct{ UID string }
	GridPos    struct{ X, Y, W, H int }
	Options    struct {
		Legend *struct{ Calcs []string }
	}
	Targets []struct {
		RefID        string
		Datasource   struct{ UID string }
		Expr         string
		LegendFormat string
	}
}

type variable struct {
	Name, Type string
	Datasource struct{ UID string }
	Query      json.RawMessage
	Definition string
}

// schemaVersion is that of Grafana 11, whose types the file was compiled against.
const schemaVersion = 39

// panelTypes are those whose options were looked at.
var panelTypes = []string{"row", "stat", "timeseries"}

// gridWidth is how many columns Grafana has.
const gridWidth = 24

// datasource is the variable by which an importer says where the data is.
const datasource = "${DS_PROMETHEUS}"

func dashboardText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(docs + "monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// readDashboard returns the dashboard and everything that it asks for.
func readDashboard(t *testing.T) (d dashboard, all []question) {
	t.Helper()
	if err := json.Unmarshal([]byte(dashboardText(t)), &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, question{"dashboard, panel " + p.Title, target.Expr, target.LegendFormat})
		}
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			all = append(all, question{where: "dashboard, variable " + v.Name, expr: v.Definition})
		}
	}
	return d, all
}

// checkDashboard returns what of a dashboard Grafana would not show as it is meant.
func checkDashboard(text string) (wrong []string) {
	var d dashboard
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return []string{err.Error()}
	}
	if d.SchemaVersion != schemaVersion || d.UID == "" {
		wrong = append(wrong, fmt.Sprintf("schema version %d, uid %q", d.SchemaVersion, d.UID))
	}
	wrong = append(wrong, checkVariables(text, d.Templating.List)...)
	ids := map[int]bool{}
	for i, p := range d.Panels {
		complain := func(format string, args ...any) {
			wrong = append(wrong, fmt.Sprintf("panel %q: %s", p.Title, fmt.Sprintf(format, args...)))
		}
		if ids[p.ID] || p.ID == 0 {
			complain("the id %d", p.ID)
		}
		ids[p.ID] = true
		if !slices.Contains(panelTypes, p.Type) || p.Title == "" {
			complain("it is a %q", p.Type)
		}
		if g := p.GridPos; g.X < 0 || g.Y < 0 || g.W <= 0 || g.H <= 0 || g.X+g.W > gridWidth {
			complain("its place %v", g)
		}
		for _, q := range d.Panels[:i] {
			if overlap(p.GridPos.X, p.GridPos.W, q.GridPos.X, q.GridPos.W) && overlap(p.GridPos.Y, p.GridPos.H, q.GridPos.Y, q.GridPos.H) {
				complain("it covers %s", q.Title)
			}
		}
		p.check(complain)
	}
	return wrong
}

func overlap(a, length, b, other int) bool { return a < b+other && b < a+length }

// check looks at what a panel shows.
func (p *panel) check(complain func(format string, args ...any)) {
	if p.Type == "row" {
		return
	}
	if p.Datasource.UID != datasource || len(p.Targets) == 0 {
		complain("the source %q, and %d targets", p.Datasource.UID, len(p.Targets))
	}
	if p.Type == "timeseries" && (p.Options.Legend == nil || p.Options.Legend.Calcs == nil) {
		complain("no legend, or none with calcs")
	}
	refs := map[string]bool{}
	for _, target := range p.Targets {
		if target.Datasource.UID != datasource || target.Expr == "" || target.LegendFormat == "" {
			complain("target %s has the source %q, asks %q, and says %q", target.RefID, target.Datasource.UID, target.Expr, target.LegendFormat)
		}
		if refs[target.RefID] || target.RefID == "" {
			complain("the refId %q", target.RefID)
		}
		refs[target.RefID] = true
	}
}

// variableUse is a variable of the dashboard's; those of Grafana's own begin with underscores.
var variableUse = regexp.MustCompile(`\$\{?([A-Za-z][A-Za-z0-9_]*)`)

// checkVariables returns what is wrong with the variables: all are used, and there are all
// that are used.
func checkVariables(text string, all []variable) (wrong []string) {
	used := map[string]bool{}
	for _, use := range variableUse.FindAllStringSubmatch(text, -1) {
		used[use[1]] = true
	}
	for _, v := range all {
		var query struct{ Query string }
		switch {
		case !used[v.Name]:
			wrong = append(wrong, fmt.Sprintf("the variable %s is there twice, or nobody uses it", v.Name))
		case "${"+v.Name+"}" == datasource && v.Type == "datasource" && string(v.Query) == `"prometheus"`:
		case v.Type != "query" || v.Datasource.UID != datasource || json.Unmarshal(v.Query, &query) != nil || query.Query != v.Definition || v.Definition == "":
			wrong = append(wrong, fmt.Sprintf("the variable %s is a %q over %q, by %s and by %q", v.Name, v.Type, v.Datasource.UID, v.Query, v.Definition))
		}
		delete(used, v.Name)
	}
	for name := range used {
		wrong = append(wrong, fmt.Sprintf("there is no variable %s", name))
	}
	return wrong
}

// Grafana is given what it needs to import the dashboard.
func TestDashboardCanBeImported(t *testing.T) {
	t.Parallel()
	for _, wrong := range checkDashboard(dashboardText(t)) {
		t.Error(wrong)
	}
	d, questions := readDashboard(t)
	if len(d.Panels) < 40 || len(d.Templating.List) < 4 || len(questions) < 50 {
		t.Errorf("looked at %d panels, %d variables and %d questions", len(d.Panels), len(d.Templating.List), len(questions))
	}
}

func TestDashboardsAreChecked(t *testing.T) {
	t.Parallel()
	good := dashboardText(t)
	for name, change := range map[string]struct{ old, new string }{
		"another schema":           {`"schemaVersion": 39`, `"schemaVersion": 16`},
		"an id twice":              {`"id": 3,`, `"id": 2,`},
		"no id":                    {`"id": 3,`, ``},
		"another type":             {`"type": "stat"`, `"type": "singlestat"`},
		"no title":                 {`"title": "Dead letters"`, `"title": ""`},
		"beyond the grid":          {`"x": 18,`, `"x": 19,`},
		"a panel over another":     {`"x": 6,`, `"x": 5,`},
		"a source by its name":     {datasource, `prometheus-1`},
		"a legend without calcs":   {`"calcs": [],`, ``},
		"a refId twice":            {`"refId": "B"`, `"refId": "A"`},
		"no refId":                 {`"refId": "A",`, ``},
		"no expression":            {`"expr": "sum by (service) (sagamill_outbox_active{service=~\"$service\",instance=~\"$instance\"})"`, `"expr": ""`},
		"a variable that is none":  {`$service`, `$servise`},
		"a variable of no use":     {`"name": "job"`, `"name": "jobs"`},
		"a variable twice":         {`"name": "service"`, `"name": "job"`},
		"a definition of its own":  {`"definition": "label_values(sagamill_outbox_active, service)"`, `"definition": "label_values(x, service)"`},
		"a source of another type": {`"query": "prometheus"`, `"query": "loki"`},
		"no JSON":                  {`{`, `[`},
	} {
		if !strings.Contains(good, change.old) {
			t.Errorf("%s: the dashboard has no %s", name, change.old)
		}
		if wrong := checkDashboard(strings.Replace(good, change.old, change.new, 1)); len(wrong) == 0 {
			t.Errorf("%s: nothing is wrong", name)
		}
	}
}
