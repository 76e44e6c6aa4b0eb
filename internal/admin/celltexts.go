package admin

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// show returns what a cell shows: a text, or a graph.
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
	case "watching", "available", "leader", "standby":
		return "good"
	case "failing", "refused", "away", "full":
		return "bad"
	case "blocked", "reading", "starting", "missing":
		return "wait"
	}
	return ""
}
