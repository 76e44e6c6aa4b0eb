package admin

import (
	"cmp"
	"crypto/sha256"
	_ "embed" // of the page
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// The page at / shows the status for people, as tables. Its script reads the page again every two seconds and replaces what
// changed. Some of the values come from tenants and receivers: [markup] escapes them, and the Content-Security-Policy lets
// nothing run but that script.

// pageText is the page without what comes from the status. Its comments mark the places for that.
//
//go:embed page.html
var pageText string

// markup is a part of the page. html/template would keep every exported method of every type in the program, which makes it a quarter larger.
type markup struct{ strings.Builder }

// add adds markup, in which each verb stands for a value. Texts are escaped as a text and an attribute in double quotes need it: nowhere
// else may a verb stand, and the format is a constant.
func (m *markup) add(format string, values ...any) {
	for n, value := range values {
		if _, ok := value.(float64); !ok {
			values[n] = html.EscapeString(strings.ReplaceAll(fmt.Sprint(value), "\x00", "\uFFFD"))
		}
	}
	fmt.Fprintf(m, format, values...)
}

// tableOf is one table of the page. List is its id, and says what the rows are.
type tableOf struct {
	Title, List string
	Columns     []column
}

// column shows the member Key of a row. As is how, and the class of its cells.
type column struct{ Title, Key, As string }

func tables() []tableOf {
	return []tableOf{
		{"Replicas", "replica", []column{
			{"This one", "role", "state"},
			{"Leader", "holder", "prose"},
			{"Lease", "lease", ""},
			{"Term", "term", "count"},
			{"Delivers", "delivering", ""},
			{"Standbys", "standbys", ""},
			{"In sync", "standbysInSync", ""},
			{"Has the state", "inSync", ""},
			{"Copy behind, s", "lagSeconds", "count"},
			{"Error", "error", "prose"},
		}},
		{"Pipelines", "pipelines", []column{
			{"Pipeline", "name", ""},
			{"Sink", "sink", ""},
			{"Sink is", "state", "state"},
			{"Ledger", "", "ledger"},
			{"Last 10 min", "rates", "line"},
			{"Oldest waits", "oldest", "age"},
			{"In memory", "bytes", "bytes"},
			{"On disk", "logBytes", "bytes"},
			{"Last error", "lastError", "prose"},
		}},
		{"Watches", "watches", []column{
			{"Resource", "resource", ""},
			{"Namespace", "namespace", ""},
			{"Source", "source", ""},
			{"State", "state", "state"},
			{"Position", "position", "position"},
			{"Objects", "known", "count"},
			{"Last heard", "lastActivity", "age"},
			{"Held back", "blockedSince", "age"},
			{"Gaps", "gaps", "count"},
			{"Error", "error", "prose"},
		}},
		{"Dead letters in the state directory", "deadLetters", []column{
			{"State", "full", "state"}, {"Letters", "entries", "count"}, {"Size", "bytes", "bytes"}, {"Bound", "maxBytes", "bytes"},
		}},
		{"Last gaps", "gaps", []column{
			{"Resource", "resource", ""}, {"Namespace", "namespace", ""}, {"Source", "source", ""}, {"Ago", "time", "age"}, {"From", "from", "position"}, {"To", "to", "position"}, {"Reason", "reason", "prose"},
		}},
	}
}

// object is an object of the status.
type object = map[string]any

// newPage returns the handler of the page.
func newPage(status func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var decoded object
		encoded, err := json.Marshal(status())
		if err == nil {
			err = json.Unmarshal(encoded, &decoded)
		}
		if err != nil {
			http.Error(w, "the page cannot be shown; see /status", http.StatusInternalServerError)
			return
		}
		page := render(decoded)
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", fmt.Sprintf("default-src 'none'; style-src %s; script-src %s; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
			digestOf("style", page), digestOf("script", page)))
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		_, _ = w.Write(page) // the client went away
	}
}

// render returns the page.
func render(status object) []byte {
	var title, about, main markup
	if cluster := status["cluster"]; cluster != nil && cluster != "" {
		title.add("%v – ", cluster)
	}
	title.add("kubeferry")
	about.add("%v", aboutText(status))
	addProblems(&main, status)
	for _, t := range tables() {
		t.add(&main, status)
	}
	places := strings.NewReplacer("<!--title-->", title.String(), "<!--about-->", about.String(), "<!--main-->", main.String())
	return []byte(places.Replace(pageText))
}

func addProblems(m *markup, status object) {
	problems, _ := status["problems"].([]any)
	m.add(`<section id="problems" aria-live="polite" aria-label="What needs attention"`)
	if len(problems) == 0 {
		m.add(` class="none">` + "\n<p>Nothing needs attention</p>")
	} else {
		m.add(">\n<p>Needs attention</p><ul>")
		for _, p := range problems {
			m.add("<li>%v</li>", p)
		}
		m.add("</ul>")
	}
	m.add("\n</section>\n")
}

// add adds the table. Without rows it is hidden.
func (t tableOf) add(m *markup, status object) {
	found := rows(t, status)
	m.add(`<section id="%v"`, t.List)
	if len(found) == 0 {
		m.add(" hidden")
	}
	m.add(`>
<h2 id="%v-title">%v</h2>
<div class="scroll" role="region" tabindex="0" aria-labelledby="%v-title">
<table role="table" aria-labelledby="%v-title">
<thead role="rowgroup"><tr role="row">`, t.List, t.Title, t.List, t.List)
	for _, c := range t.Columns {
		m.add(`<th role="columnheader" scope="col" class="%v">%v</th>`, c.As, c.Title)
	}
	m.add("</tr></thead>\n" + `<tbody role="rowgroup">`)
	for _, row := range found {
		m.add("\n" + `<tr role="row">`)
		for n, c := range t.Columns {
			if n == 0 {
				m.add(`<th role="rowheader" scope="row" class="%v" data-label="%v">`, c.As, c.Title)
				c.add(m, row, status)
				m.add("</th>")
				continue
			}
			m.add(`<td role="cell" class="%v" data-label="%v">`, c.As, c.Title)
			c.add(m, row, status)
			m.add("</td>")
		}
		m.add("</tr>")
	}
	m.add("\n</tbody>\n</table>\n</div>\n</section>\n")
}

// add adds what a cell shows.
func (c column) add(m *markup, row, status object) {
	switch value := c.show(row[c.Key], row, status).(type) {
	case *graph:
		value.add(m)
	default:
		if c.As == "state" {
			m.add(`<b class="%v">%v</b>`, tone(fmt.Sprint(value)), value)
			return
		}
		m.add("%v", value)
	}
}

// digestOf returns the source expression of the page's only element of a name. No value can look like one: it would be escaped.
func digestOf(element string, page []byte) string {
	content := regexp.MustCompile(`(?s)<` + element + `>(.*?)</` + element + `>`).FindSubmatch(page)
	sum := sha256.Sum256(content[1])
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func aboutText(status object) string {
	return fmt.Sprintf("cluster %v · %v · up %s", status["cluster"], status["version"], age(status["started"], status["now"]))
}

// rows returns the rows of a table.
func rows(t tableOf, status object) []object {
	switch t.List {
	case "replica":
		one, ok := status["replica"].(object)
		if !ok {
			return nil
		}
		if one["role"] == "leader" {
			delete(one, "inSync")
		} else {
			for _, ofLeader := range []string{"delivering", "standbys", "standbysInSync"} {
				delete(one, ofLeader)
			}
		}
		return []object{one}
	case "deadLetters":
		if one, ok := status[t.List].(object); ok {
			return []object{one}
		}
		return nil
	case "gaps":
		var gaps []object
		for _, w := range objects(status["watches"]) {
			for _, g := range objects(w["lastGaps"]) {
				gap := maps.Clone(g)
				gap["resource"], gap["namespace"], gap["source"] = w["resource"], w["namespace"], w["source"]
				gaps = append(gaps, gap)
			}
		}
		slices.SortStableFunc(gaps, func(a, b object) int { return cmp.Compare(fmt.Sprint(b["time"]), fmt.Sprint(a["time"])) })
		return gaps[:min(len(gaps), 10)]
	default:
		return objects(status[t.List])
	}
}

func objects(list any) (found []object) {
	items, _ := list.([]any)
	for _, item := range items {
		if one, ok := item.(object); ok {
			found = append(found, one)
		}
	}
	return found
}
