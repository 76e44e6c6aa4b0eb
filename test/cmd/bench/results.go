package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"
)

// results are what a run of the benchmark found.
type results struct {
	Machine string
	Scale   float64
	Pairs   int
	Rows    []rowResult
}

type rowResult struct {
	Name, Title string
	Checks      []check
}

// check is one line of the table.
type check struct {
	What string
	// Base and Value are what the two sides have, with their names if they are not the floor and kubeferry.
	Base, Value string
	Ratio       string
	Target      string
	Outcome     outcome
}

type outcome string

const (
	met    outcome = "met"
	missed outcome = "MISSED"
	none   outcome = "" // no target is set
)

func (c check) String() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s: %s → %s  %s  %s %s", c.What, c.Base, c.Value, c.Ratio, c.Target, c.Outcome)), " ")
}

// goal is a target for a number.
type goal struct {
	text string
	met  func(float64) bool
}

func atMost(bound float64, text string) *goal {
	return &goal{text, func(v float64) bool { return v <= bound }}
}

func atLeast(bound float64, text string) *goal {
	return &goal{text, func(v float64) bool { return v >= bound }}
}

func (g *goal) judge(v float64) (text string, found outcome) {
	switch {
	case g == nil:
		return "", none
	case g.met(v):
		return g.text, met
	default:
		return g.text, missed
	}
}

// labelled is a pair whose sides have names of their own.
type labelled struct {
	pair
	a, b string
}

// named gives the sides names; kubeferry with its defaults needs none.
func (p pair) named(a, b string) labelled {
	of := labelled{pair: p, a: a + " "}
	if b != "" {
		of.b = b + " "
	}
	return of
}

// against compares the medians of both sides, and judges the median of the ratios.
func (p pair) against(what string, value func(sample) float64, g *goal) check {
	return labelled{pair: p}.against(what, value, g)
}

func (p labelled) against(what string, value func(sample) float64, g *goal) check {
	ratio := p.ratio(value)
	c := check{
		What: what, Base: p.a + number(median(each(p.pair.a, value))), Value: p.b + number(median(each(p.pair.b, value))),
		Ratio: fmt.Sprintf("%.2f", ratio),
	}
	c.Target, c.Outcome = g.judge(ratio)
	return c
}

// bounded judges the median of the second side.
func (p pair) bounded(what string, value func(sample) float64, bound float64, text string) check {
	c := p.against(what, value, nil)
	c.Target, c.Outcome = atMost(bound, text).judge(median(each(p.b, value)))
	return c
}

// alone judges a number that has nothing beside it.
func alone(what string, value float64, g *goal) check {
	c := check{What: what, Value: number(value)}
	c.Target, c.Outcome = g.judge(value)
	return c
}

// number writes three significant digits, or all before the point.
func number(v float64) string {
	switch size := math.Abs(v); {
	case size >= 10_000:
		text := fmt.Sprintf("%.0f", v)
		return text[:len(text)-3] + "," + text[len(text)-3:]
	case size >= 100:
		return fmt.Sprintf("%.0f", v)
	case size >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

func (r *results) missed() bool {
	for _, row := range r.Rows {
		for _, c := range row.Checks {
			if c.Outcome == missed {
				return true
			}
		}
	}
	return false
}

// print writes the table, which is Markdown as well.
func (r *results) print(out io.Writer) {
	lines := [][]string{{"row", "", "floor", "kubeferry", "ratio", "target", ""}, nil}
	for _, row := range r.Rows {
		name := row.Name
		for _, c := range row.Checks {
			lines = append(lines, []string{name, c.What, c.Base, c.Value, c.Ratio, c.Target, string(c.Outcome)})
			name = ""
		}
	}
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	fmt.Fprintf(out, "%s\nmedians of %d paired runs", r.Machine, r.Pairs)
	if r.Scale != 1 {
		fmt.Fprintf(out, "; with %g × the objects, so that the targets mean little", r.Scale)
	}
	fmt.Fprint(out, "\n\n")
	for _, line := range lines {
		for i, width := range widths {
			if line == nil {
				fmt.Fprint(out, "|", strings.Repeat("-", width+2))
				continue
			}
			fmt.Fprint(out, "| ", line[i], strings.Repeat(" ", width-utf8.RuneCountInString(line[i])), " ")
		}
		fmt.Fprintln(out, "|")
	}
}
