package main

import (
	"bytes"
	"fmt"
	"html"
)

// drawing writes SVG.
type drawing struct{ b bytes.Buffer }

func newDrawing() *drawing {
	d := &drawing{}
	fmt.Fprintf(&d.b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif">`+"\n", width, height)
	d.rect(0, 0, width, height, "#ffffff")
	return d
}

func (d *drawing) rect(x, y, w, h float64, fill string) {
	fmt.Fprintf(&d.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y, w, h, fill)
}

func (d *drawing) line(x1, y1, x2, y2 float64, stroke string, thick float64) {
	fmt.Fprintf(&d.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%g"/>`+"\n", x1, y1, x2, y2, stroke, thick)
}

func (d *drawing) circle(x, y, radius float64, fill string) {
	fmt.Fprintf(&d.b, `<circle cx="%.1f" cy="%.1f" r="%g" fill="%s"/>`+"\n", x, y, radius, fill)
}

// text stands with its anchor (start, middle, end) at x.
func (d *drawing) text(x, y float64, anchor string, size int, fill, text string) {
	fmt.Fprintf(&d.b, `<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d" fill="%s">%s</text>`+"\n", x, y, anchor, size, fill, html.EscapeString(text))
}

func (d *drawing) end() []byte {
	d.b.WriteString("</svg>\n")
	return d.b.Bytes()
}
