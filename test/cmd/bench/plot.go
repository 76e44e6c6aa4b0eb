package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// The plots; what a row adds to them are points.
const (
	plotCPU     = "cpu"     // bars: group, series, µs per change
	plotMemory  = "memory"  // objects against MiB
	plotLatency = "latency" // changes per second against ms
)

// point is one bar, or one point of a line.
type point struct {
	Plot, Series string
	// Group is where a bar stands; X where a point does.
	Group string  `json:",omitempty"`
	X     float64 `json:",omitempty"`
	Y     float64
}

func (l *lab) point(plot, group, series string, y float64) {
	l.points = append(l.points, point{Plot: plot, Group: group, Series: series, Y: y})
}

func (l *lab) pointAt(plot, series string, x, y float64) {
	l.points = append(l.points, point{Plot: plot, Series: series, X: x, Y: y})
}

func (l *lab) takePoints() []point {
	points := l.points
	l.points = nil
	return points
}

// plot draws what there are points for.
func (r *results) plot(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range []struct {
		name string
		draw func([]point) *drawing
	}{
		{plotCPU, func(points []point) *drawing { return bars("CPU per change, µs (less is better)", points) }},
		{plotMemory, func(points []point) *drawing { return lines("Memory, MiB", "known objects", points) }},
		{plotLatency, func(points []point) *drawing {
			return lines("Behind a raw watch, ms; linger 5 ms", "changes per second", points)
		}},
	} {
		points := slices.DeleteFunc(slices.Clone(r.Points), func(q point) bool { return q.Plot != p.name })
		if len(points) == 0 {
			continue
		}
		d := p.draw(points)
		d.text(width/2, height-8, "middle", 10, "#666", r.Machine)
		if err := os.WriteFile(filepath.Join(dir, p.name+".svg"), d.end(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// The frame of a plot, in pixels.
const (
	width, height            = 760, 400
	left, right, top, bottom = 70, 20, 60, 70
)

// palette distinguishes series, also for those who see fewer colours (Okabe and Ito).
func palette() []string { return []string{"#999999", "#0072b2", "#d55e00", "#009e73", "#cc79a7"} }

// axis maps values to pixels, from 0 to a round number above the largest.
type axis struct {
	most     float64
	from, to float64
}

func newAxis(largest, from, to float64) axis {
	step := stepOf(largest)
	return axis{most: max(step, step*math.Ceil(largest/step*1.02)), from: from, to: to}
}

func (a axis) at(v float64) float64 { return a.from + (a.to-a.from)*v/a.most }

// ticks are round numbers.
func (a axis) ticks() []float64 {
	var ticks []float64
	for n := 0.0; n*stepOf(a.most) <= a.most*1.001; n++ {
		ticks = append(ticks, n*stepOf(a.most))
	}
	return ticks
}

// stepOf is 1, 2 or 5 times a power of ten, so that there are four to ten steps.
func stepOf(largest float64) float64 {
	if largest <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(largest)))
	for _, f := range []float64{0.1, 0.2, 0.5, 1} {
		if largest/(power*f) <= 10 {
			return power * f
		}
	}
	return power
}

func (d *drawing) frame(title string, y axis) {
	d.text(left, 24, "start", 15, "#222", title)
	for _, tick := range y.ticks() {
		d.line(left, y.at(tick), width-right, y.at(tick), "#ddd", 1)
		d.text(left-8, y.at(tick)+4, "end", 11, "#444", tickText(tick))
	}
}

func tickText(v float64) string {
	if v >= 10_000 {
		return number(v)
	}
	return fmt.Sprintf("%g", math.Round(v*100)/100)
}

// legend lists the series in the order of their first points.
func (d *drawing) legend(series []string) {
	x := float64(left)
	for i, name := range series {
		d.rect(x, 36, 12, 12, palette()[i%len(palette())])
		d.text(x+17, 46, "start", 12, "#222", name)
		x += 36 + 7*float64(len(name))
	}
}

// distinct are the values of a field in the order of their first points.
func distinct(points []point, field func(point) string) []string {
	var found []string
	for _, p := range points {
		if v := field(p); !slices.Contains(found, v) {
			found = append(found, v)
		}
	}
	return found
}

func largest(points []point, value func(point) float64) float64 {
	most := 0.0
	for _, p := range points {
		most = max(most, value(p))
	}
	return most
}

func bars(title string, points []point) *drawing {
	d := newDrawing()
	y := newAxis(largest(points, func(p point) float64 { return p.Y }), height-bottom, top)
	d.frame(title, y)
	series := distinct(points, func(p point) string { return p.Series })
	groups := distinct(points, func(p point) string { return p.Group })
	d.legend(series)
	room := float64(width-left-right) / float64(len(groups))
	thick := room * 0.8 / float64(len(series))
	for _, p := range points {
		x := left + room*(float64(slices.Index(groups, p.Group))+0.1) + thick*float64(slices.Index(series, p.Series))
		d.rect(x, y.at(p.Y), thick-4, y.from-y.at(p.Y), palette()[slices.Index(series, p.Series)%len(palette())])
		d.text(x+thick/2-2, y.at(p.Y)-5, "middle", 11, "#222", number(p.Y))
	}
	for i, group := range groups {
		d.text(left+room*(float64(i)+0.5), height-bottom+20, "middle", 12, "#222", group)
	}
	return d
}

func lines(title, label string, points []point) *drawing {
	d := newDrawing()
	y := newAxis(largest(points, func(p point) float64 { return p.Y }), height-bottom, top)
	x := newAxis(largest(points, func(p point) float64 { return p.X }), left, width-right)
	d.frame(title, y)
	for _, tick := range x.ticks() {
		d.text(x.at(tick), height-bottom+18, "middle", 11, "#444", tickText(tick))
	}
	d.text((left+width-right)/2, height-bottom+38, "middle", 12, "#222", label)
	series := distinct(points, func(p point) string { return p.Series })
	d.legend(series)
	for i, name := range series {
		of := slices.DeleteFunc(slices.Clone(points), func(p point) bool { return p.Series != name })
		slices.SortFunc(of, func(a, b point) int { return int(a.X - b.X) })
		color := palette()[i%len(palette())]
		for n, p := range of {
			if n > 0 {
				d.line(x.at(of[n-1].X), y.at(of[n-1].Y), x.at(p.X), y.at(p.Y), color, 2)
			}
			d.circle(x.at(p.X), y.at(p.Y), 4, color)
		}
	}
	return d
}
