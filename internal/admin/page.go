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

// The page at / shows the status for people: as tables that are rendered here, and then kept up to date by a script that reads
// /status. Both show values in the same way. Some of the values come from tenants and receivers: html/template escapes them here,
// the script sets them as text, and the Content-Security-Policy lets nothing run but that script.

//go:embed page.html
var pageText string

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
			{"Standbys", "standbys", "count"},
			{"In sync", "standbysInSync", "count"},
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
			{"State", "", "state"}, {"Letters", "entries", "count"}, {"Size", "bytes", "bytes"}, {"Bound", "maxBytes", "bytes"},
		}},
		{"Last gaps", "gaps", []column{
			{"Resource", "resource", ""}, {"Namespace", "namespace", ""}, {"Source", "source", ""}, {"Ago", "time", "age"}, {"From", "from", "position"}, {"To", "to", "position"}, {"Reason", "reason", "prose"},
		}},
	}
}

// object is an object of the status.
type object = map[string]any

// newPage returns the handler of the page.
func newPage(status func(rates bool) any) http.HandlerFunc {
	page := template.Must(template.New("page").Funcs(template.FuncMap{"about": about, "rows": rows, "cell": cell}).Parse(pageText))
	return func(w http.ResponseWriter, _ *http.Request) {
		var decoded object
		encoded, err := json.Marshal(status(true))
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
	case "replica", "deadLetters":
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

// cell shows one value.
func cell(c column, row, status object) any {
	value := row[c.Key]
	number, _ := value.(float64)
	switch c.As {
	case "count":
		return count(number)
	case "bytes":
		return sizeText(number)
	case "age":
		return age(value, status["now"])
	case "state":
		return state(value, row)
	case "ledger":
		return ledger(row)
	case "line":
		return rate(value)
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

func state(value any, row object) template.HTML {
	text, _ := value.(string)
	switch {
	case row["blocked"] == true:
		text = "blocked"
	case row["full"] == true:
		text = "full"
	case text == "":
		text = "kept"
	}
	tone := map[string]string{
		"watching": "good", "open": "good", "leader": "good", "standby": "good", "failing": "bad", "refused": "bad", "closed": "bad", "full": "bad",
		"blocked": "wait", "reading": "wait", "starting": "wait", "missing": "wait",
	}[text]
	return template.HTML(fmt.Sprintf(`<b class="%s">%s</b>`, tone, template.HTMLEscapeString(text)))
}

// ledger shows what became of a pipeline's deltas, in words: the bar is the script's, as is the line of the rates.
func ledger(row object) string {
	var parts, reasons []string
	dead, byReason := 0.0, object{}
	if of, ok := row["dead"].(object); ok {
		byReason = of
	}
	for _, reason := range slices.Sorted(maps.Keys(byReason)) {
		if n, _ := byReason[reason].(float64); n > 0 {
			dead += n
			reasons = append(reasons, reason+" "+count(n))
		}
	}
	for _, name := range []string{"delivered", "waiting", "dead", "filtered"} {
		n, _ := row[name].(float64)
		switch {
		case name == "dead" && dead > 0:
			parts = append(parts, "dead "+count(dead)+" ("+strings.Join(reasons, ", ")+")")
		case n > 0:
			parts = append(parts, name+" "+count(n))
		}
	}
	return cmp.Or(strings.Join(parts, " · "), "nothing yet")
}

func rate(value any) string {
	rates, _ := value.(object)
	delivered, _ := rates["delivered"].([]any)
	step, _ := rates["stepSeconds"].(float64)
	if len(delivered) < 2 || step == 0 {
		return "–"
	}
	last, _ := delivered[len(delivered)-1].(float64)
	if last /= step; last < 10 {
		return fmt.Sprintf("%.1f delivered/s", last)
	}
	return count(last) + " delivered/s"
}
