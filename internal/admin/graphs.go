package admin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

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

func (g *graph) add(m *markup) {
	if g == nil {
		m.add("–")
		return
	}
	m.add(`<svg viewBox="0 0 100 %v" preserveAspectRatio="none" role="img" aria-label="%v">`, g.Height, g.Text)
	for _, b := range g.Bars {
		m.add(`<rect class="%v" x="%.2f" width="%.2f" height="1"/>`, b.Class, b.X, b.Width)
	}
	if len(g.Bars) == 0 && len(g.Lines) == 0 {
		m.add(`<rect class="none" width="100" height="1"/>`)
	}
	for _, l := range g.Lines {
		m.add(`<polyline class="%v" points="%v"/>`, l.Class, l.Points)
	}
	m.add("</svg><small>%v</small>", g.Text)
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
