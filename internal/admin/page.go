package admin

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed" // of the page
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The page at / shows the status for people, as tables. Its script reads the page again every two seconds and replaces what
// changed. Some of the values come from tenants and receivers: html/template escapes them, and the Content-Security-Policy lets
// nothing run but that script.

//go:embed page.html
var pageText string

// tableOf is one table of the page. List is its id, and says what the rows are.
type tableOf struct {
	Title, List string
	Columns     []column
}

// column shows the member Key of a row. As is how, and the class of its cells.
type column struct{ Title, Key, As string }

// graph is the ledger of a pipeline as a bar, or its rates as lines, in a box that is 100 wide. Text says the same in words.
type graph struct {
	Text   string
	Height int
	Bars   []bar
	Lines  []line
}

type (
	bar struct {
		Class    string
		X, Width float64
	}
	line struct{ Class, Points string }
)

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
			{"Gate", "gate", "state"},
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
	page := template.Must(template.New("page").Funcs(template.FuncMap{"about": about, "rows": rows, "cell": cell, "tone": tone}).Parse(pageText))
	return func(w http.ResponseWriter, _ *http.Request) {
		var decoded object
		encoded, err := json.Marshal(status())
		if err == nil {
			err = json.Unmarshal(encoded, &decoded)
		}
		var b bytes.Buffer
		if err == nil {
			err = page.Execute(&b, struct {
				Status object
				Tables []tableOf
			}{decoded, tables()})
		}
		if err != nil {
			http.Error(w, "the page cannot be shown; see /status", http.StatusInternalServerError)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", fmt.Sprintf("default-src 'none'; style-src %s; script-src %s; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
			digestOf("style", b.Bytes()), digestOf("script", b.Bytes())))
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		_, _ = w.Write(b.Bytes()) // the client went away
	}
}

// digestOf returns the source expression of the page's only element of a name. No value can look like one: it would be escaped.
func digestOf(element string, page []byte) string {
	content := regexp.MustCompile(`(?s)<` + element + `>(.*?)</` + element + `>`).FindSubmatch(page)
	sum := sha256.Sum256(content[1])
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func about(status object) string {
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

// shown is what a cell shows, and how.
type shown struct {
	As    string
	Value any
}

func cell(c column, row, status object) shown { return shown{c.As, c.show(row[c.Key], row, status)} }

func (c column) show(value any, row, status object) any {
	switch c.As {
	case "count":
		return count(number(value))
	case "bytes":
		return sizeText(number(value))
	case "age":
		return age(value, status["now"])
	case "state":
		return state(value, row)
	case "ledger":
		return ledger(row)
	case "line":
		return rates(value)
	}
	switch value {
	case nil, "":
		return "–"
	case true:
		return "yes"
	case false:
		return "no"
	}
	return value
}

func number(value any) float64 {
	n, _ := value.(float64)
	return n
}

func count(n float64) string {
	text := strconv.FormatFloat(math.Round(n), 'f', 0, 64)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

func sizeText(n float64) string {
	unit := 0
	for ; n >= 1024 && unit < 4; unit++ {
		n /= 1024
	}
	if unit == 0 {
		return count(n) + " B"
	}
	return fmt.Sprintf("%.1f %s", n, []string{"", "KiB", "MiB", "GiB", "TiB"}[unit])
}

func age(from, now any) string {
	since, err := time.Parse(time.RFC3339Nano, fmt.Sprint(from))
	at, errNow := time.Parse(time.RFC3339Nano, fmt.Sprint(now))
	if err != nil || errNow != nil {
		return "–"
	}
	switch s := int(max(0, at.Sub(since)).Seconds()); {
	case s < 120:
		return fmt.Sprintf("%d s", s)
	case s < 7200:
		return fmt.Sprintf("%d min", s/60)
	case s < 172800:
		return fmt.Sprintf("%d h", s/3600)
	default:
		return fmt.Sprintf("%d d", s/86400)
	}
}

func state(value any, row object) string {
	switch {
	case row["blocked"] == true:
		return "blocked"
	case value == true:
		return "full"
	case value == false:
		return "kept"
	}
	return fmt.Sprint(value)
}

// tone is the class of a state.
func tone(state string) string {
	switch state {
	case "watching", "open", "leader", "standby":
		return "good"
	case "failing", "refused", "closed", "full":
		return "bad"
	case "blocked", "reading", "starting", "missing":
		return "wait"
	}
	return ""
}

// ledger shows what became of a pipeline's deltas.
func ledger(row object) *graph {
	var reasons []string
	dead, total := 0.0, 0.0
	byReason, _ := row["dead"].(object)
	for _, reason := range slices.Sorted(maps.Keys(byReason)) {
		if n := number(byReason[reason]); n > 0 {
			dead += n
			reasons = append(reasons, reason+" "+count(n))
		}
	}
	var parts []string
	g := &graph{Height: 1}
	for _, name := range []string{"delivered", "waiting", "dead", "filtered"} {
		n := number(row[name])
		text := name + " " + count(n)
		if name == "dead" {
			n, text = dead, "dead "+count(dead)+" ("+strings.Join(reasons, ", ")+")"
		}
		if n > 0 {
			total += n
			parts = append(parts, text)
			g.Bars = append(g.Bars, bar{Class: name, Width: n})
		}
	}
	g.Text = cmp.Or(strings.Join(parts, " · "), "nothing yet")
	all := 0.0
	for n := range g.Bars {
		g.Bars[n].Width = max(1.5, 100*g.Bars[n].Width/total) // so that a few are seen
		all += g.Bars[n].Width
	}
	x := 0.0
	for n := range g.Bars {
		g.Bars[n].X, g.Bars[n].Width = x, g.Bars[n].Width*100/all
		x += g.Bars[n].Width
	}
	return g
}

// rates shows what passed the filters of a pipeline, and what its sink took; nil if too little is counted.
func rates(value any) *graph {
	of, _ := value.(object)
	delivered, _ := of["delivered"].([]any)
	taken, _ := of["taken"].([]any)
	if len(delivered) < 2 {
		return nil
	}
	top := 1.0
	for _, n := range slices.Concat(delivered, taken) {
		top = max(top, number(n))
	}
	points := func(counts []any) string {
		var b strings.Builder
		for n, c := range counts {
			fmt.Fprintf(&b, "%.1f,%.1f ", 100-100*float64(len(counts)-1-n)/(number(of["steps"])-1), 19-18*number(c)/top)
		}
		return b.String()
	}
	last := number(delivered[len(delivered)-1]) / number(of["stepSeconds"])
	text := count(last)
	if last < 10 {
		text = fmt.Sprintf("%.1f", last)
	}
	return &graph{Text: text + " delivered/s", Height: 20, Lines: []line{{"taken", points(taken)}, {"delivered", points(delivered)}}}
}
