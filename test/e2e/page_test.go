package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// browser is a page in a headless Chromium.
type browser struct {
	tb  testing.TB
	ctx context.Context
	// console are the exceptions, and what the page and the browser log: violations of the Content-Security-Policy too.
	console func() []string
}

// startBrowser starts Chromium, or skips the test where there is none, but not in CI.
func startBrowser(tb testing.TB) *browser {
	tb.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil && os.Getenv("CI") != "true" {
		tb.Skip("no chromium on the PATH")
	} else if err != nil {
		tb.Fatal(err)
	}
	allocator, stop := chromedp.NewExecAllocator(context.Background(), append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WSURLReadTimeout(3*wide))...)
	b := &browser{tb: tb}
	b.ctx, _ = chromedp.NewContext(allocator)
	messages := chromedp.Console(b.ctx)
	var mu sync.Mutex
	var read []string
	var reading sync.WaitGroup
	reading.Go(func() {
		for message, err := range messages {
			if err != nil {
				return
			}
			mu.Lock()
			read = append(read, fmt.Sprint(message))
			mu.Unlock()
		}
	})
	tb.Cleanup(func() {
		defer stop()
		if err := chromedp.Cancel(b.ctx); err != nil {
			tb.Error(err)
		}
		reading.Wait()
	})
	b.console = func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(read)
	}
	return b
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.tb.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.tb.Fatal(err)
	}
}

// eval returns what an expression is in the page.
func eval[T any](b *browser, expression string) T {
	b.tb.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.tb.Fatal(err)
	}
	return value
}

// call runs a command of the browser.
func call[P, R any](b *browser, command cdp.Command[P, R], parameters P) {
	b.tb.Helper()
	if _, err := chromedp.Call(b.ctx, command, parameters); err != nil {
		b.tb.Fatal(err)
	}
}

// see waits until the text that a person sees in an element has all the parts.
func (b *browser) see(selector string, parts ...string) {
	b.tb.Helper()
	eventually(b.tb, 2*wide, fmt.Sprintf("%s shows %q", selector, parts), func() error {
		text := eval[string](b, fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector))
		for _, part := range parts {
			if !strings.Contains(text, part) {
				return fmt.Errorf("no %q in %q", part, text)
			}
		}
		return nil
	})
}

// seeCell waits until a person sees what matches in the row of a table that begins with a text.
func (b *browser) seeCell(table, row, column, want string) {
	b.tb.Helper()
	cell := fmt.Sprintf(`[...document.querySelectorAll('#%s tbody tr')].find((r) => r.innerText.startsWith(%q))?.querySelector('[data-label=%q]')?.innerText ?? 'nothing'`, table, row, column)
	eventually(b.tb, wide, fmt.Sprintf("%s of %s is %s", column, row, want), func() error {
		if text := eval[string](b, cell); !regexp.MustCompile("^(?:" + want + ")$").MatchString(text) {
			return fmt.Errorf("it is %q", text)
		}
		return nil
	})
}

// size sets the size of the window, and the colours that the person prefers.
func (b *browser) size(width, height int64, scheme string) {
	b.tb.Helper()
	b.do(chromedp.EmulateViewport(width, height))
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// pictures is the directory that screenshots are written to: TestExtendedPage and TestExtendedDashboard make
// those of the documentation.
var pictures = os.Getenv("KUBEFERRY_SCREENSHOTS")

// screenshot writes a picture of the page, if there is a directory for it.
func (b *browser) screenshot(name string) {
	b.tb.Helper()
	if pictures == "" {
		return
	}
	picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(pictures, name+".png"), picture, 0o600); err != nil {
		b.tb.Fatal(err)
	}
}

// lowContrast lists texts whose contrast to what is behind them is below 4.5, as WCAG 2.2 AA has it.
const lowContrast = `(() => {
  const numbers = (c) => c.match(/[\d.]+/g).map(Number);
  const light = (c) => { const [r, g, b] = numbers(c).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { const c = e ? getComputedStyle(e).backgroundColor : 'rgb(255, 255, 255)'; return numbers(c)[3] === 0 ? behind(e.parentElement) : c; };
  return [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())).map((e) => {
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), e.textContent.slice(0, 40)];
  }).filter(([ratio]) => ratio < 4.5).map(([ratio, text]) => ratio.toFixed(2) + ' ' + text);
})()`

// unlabelled lists what a screen reader has no name for.
const unlabelled = `[...document.querySelectorAll('table, [role=region], [role=img], button, section')].filter((e) => !e.hidden &&
  !(e.getAttribute('aria-label') || document.getElementById(e.getAttribute('aria-labelledby'))?.innerText || e.innerText)).map((e) => e.outerHTML.slice(0, 80))`

// TestExtendedPage looks at the page in a browser while all is well, and while a sink fails, records are refused, a right is taken away
// and history is refused. What the receivers answer is meant to be run or shown as HTML.
func TestExtendedPage(t *testing.T) {
	beside(t)
	b := startBrowser(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "shop")
	account, err := plane(t).ServiceAccountConfig(t.Context(), namespace, "exporter")
	if err != nil {
		t.Fatal(err)
	}
	grantOne(t, config, namespace, "", "configmaps")
	grants := grantOne(t, config, namespace, "", "events")
	gateway, kubeconfig := gatewayOf(t, account)
	attack := `<script>window.pwned = 1</script><img src=x onerror="window.pwned = 2">`
	if pictures != "" {
		attack = "the index is read-only"
	}
	const value = "a value that nobody may see on the page"
	audit, search := webhooktest.Start(t), webhooktest.Start(t)
	e := startExporter(t, kubeconfig, fmt.Sprintf(`
stateDir: %q
shutdown: {grace: 1s}
sources: [{name: workloads, resources: [v1/configmaps, v1/events], namespaces: {include: [%s]}}]
pipelines:
  - {name: audit, sink: audit-log}
  - {name: deletions, sink: audit-log, filters: [{types: [DELETED]}]}
  - {name: search, sink: search-index}
sinks:
  - {name: audit-log, webhook: {url: %q}}
  - {name: search-index, webhook: {url: %q}}
`, t.TempDir(), namespace, audit.URL(), search.URL()))
	e.leaves = true
	e.WaitReady()
	objects := objectsIn(t, config, configMaps, namespace)
	for n := range 12 {
		objects.Create(fmt.Sprintf("cart-%d", n), data(value))
	}
	b.size(1400, 900, "light")
	b.do(chromedp.Navigate("http://" + e.address + "/"))
	b.see("#problems", "Nothing needs attention")
	b.see("#pipelines", "audit", "available", "delivered 12", "search-index")
	b.see("#watches", "v1/configmaps", "v1/events", namespace, "watching")
	b.see("#live", "live")
	if pictures != "" { // of some minutes, without what is checked below
		runLoad(t, config, load.Options{Resources: []load.Resource{load.ConfigMaps()}, Namespaces: []string{namespace}, Operations: 7000, Rate: 25, Seed: 7})
	}

	// The same page, without being loaded again.
	audit.Use(webhooktest.WhenID(func(id string) bool { return strings.HasSuffix(id, "DELETED") },
		webhooktest.Answer{Status: http.StatusUnprocessableEntity, Body: attack}, webhooktest.Accept()))
	search.Use(webhooktest.Always(webhooktest.Answer{Status: http.StatusServiceUnavailable, Body: attack}))
	for n := range 9 {
		objects.Patch(fmt.Sprintf("cart-%d", n), data(value+", changed"))
	}
	objects.Delete("cart-0")
	b.see("#problems", "Needs attention", "search-index", "503", "dead letters: 2") // of two pipelines
	gateway.Use(watches("configmaps", &proxy.Fault{Status: refused}))
	grants.Delete("events")
	gateway.Cut()
	b.see("#gaps", "v1/configmaps", namespace, "refused")
	gateway.Use(nil)
	faults := func() {
		t.Helper()
		b.see("#problems", "v1/events in namespace "+namespace, "forbidden", attack)
		b.see("#pipelines", "away", "filtered", attack)
		if pictures == "" { // else the load before counts too
			b.see("#pipelines", "waiting 10", "dead 1 (rejected 1)")
		}
		b.see("#watches", "failing", "forbidden")
		b.see("#deadLetters", "2", "1.0 GiB")
	}
	faults()
	const some, aWhile, none, sequence = `[1-9]\d*`, `\d+ (s|min)`, "–", `\d{20}`
	for _, cell := range [][4]string{
		{"pipelines", "search", "Oldest waits", aWhile},
		{"pipelines", "audit", "Oldest waits", none},
		{"pipelines", "deletions", "Oldest waits", none},
		{"pipelines", "search", "In memory", `[\d.]+ KiB`},
		{"pipelines", "audit", "In memory", "0 B"},
		{"watches", "v1/configmaps", "Gaps", some},
		{"watches", "v1/events", "Gaps", "0"},
		{"watches", "v1/configmaps", "State", "watching"},
		{"watches", "v1/configmaps", "Position", some},
		{"watches", "v1/configmaps", "Last heard", aWhile},
		{"watches", "v1/events", "Last heard", aWhile},
		{"gaps", "v1/configmaps", "Ago", aWhile},
		{"gaps", "v1/configmaps", "From", sequence},
		{"gaps", "v1/configmaps", "To", sequence},
	} {
		b.seeCell(cell[0], cell[1], cell[2], cell[3])
	}
	b.see("#pipelines .line small", "delivered/s")
	for _, scheme := range []string{"light", "dark"} {
		b.size(1400, 900, scheme)
		if low := eval[[]string](b, lowContrast); len(low) > 0 {
			t.Errorf("%s: low contrast: %q", scheme, low)
		}
		b.screenshot("page-" + scheme)
		b.size(360, 800, scheme)
		if width := eval[int](b, "document.documentElement.scrollWidth"); width > 360 {
			t.Errorf("%s: it is %d px wide on a screen of 360 px", scheme, width)
		}
	}
	if pictures != "" {
		return
	}
	b.see("#pipelines", "delivered 21")
	for selector, want := range map[string]int{
		"#pipelines rect.waiting": 1, "#pipelines rect.dead": 2, "#pipelines rect.delivered": 2, "#pipelines polyline": 6,
		"img": 0, "script": 1, "[style]": 0, "[onerror]": 0,
	} {
		if got := eval[int](b, fmt.Sprintf("document.querySelectorAll(%q).length", selector)); got != want {
			t.Errorf("%s: got %d, want %d", selector, got, want)
		}
	}
	if bare := eval[[]string](b, unlabelled); len(bare) > 0 {
		t.Errorf("without a name: %q", bare)
	}

	// By keyboard: the first stop is the button, and the tables follow. A table that is paused stays as it is.
	b.size(1400, 900, "light")
	b.do(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter))
	b.see("header", "paused", "Go on")
	b.do(chromedp.KeyEvent(kb.Tab))
	if focus := eval[string](b, "document.activeElement.getAttribute('aria-labelledby')"); focus != "pipelines-title" {
		t.Errorf("the focus is on %q", focus)
	}
	bind(grants, namespace, "events")
	search.Use(webhooktest.Accept())
	eventually(t, wide, "all is well", func() error {
		if s := e.Status(); !s.Watches[1].Ready || s.Pipelines[2].Waiting > 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	faults()
	b.do(chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(chromedp.ModifierShift)), chromedp.KeyEvent(kb.Enter))
	b.see("#pipelines", "delivered 22", "available")

	// A script that got in would not run.
	eval[any](b, `document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.pwned = 3'})), null`)
	if eval[bool](b, "'pwned' in window") {
		t.Error("a script that is not the page's ran")
	}
	eventually(t, wide, "one violation of the policy", func() error {
		if got := b.console(); len(got) != 1 || !strings.Contains(got[0], "Content Security Policy") {
			return fmt.Errorf("the browser reports %q", got)
		}
		return nil
	})

	if text := eval[string](b, "document.documentElement.outerHTML"); strings.Contains(text, value) {
		t.Error("a value of an object is on the page")
	}

	// Without JavaScript it says where the same is.
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.do(chromedp.Navigate("http://" + e.address + "/"))
	b.see("body", "needs JavaScript", "status")
}

// TestExtendedPageOfReplicas looks at the page of a leader, and of a standby, which has no pipelines. Each shows what is of its role.
func TestExtendedPageOfReplicas(t *testing.T) {
	beside(t)
	b := startBrowser(t)
	namespace := newNamespace(t, "page")
	r := newReplicas(t, namespace, hookConfig("[v1/configmaps]", fmt.Sprintf("{include: [%s]}", namespace), webhooktest.Start(t).URL()))
	r.patient()
	r.Start()
	r.Start()
	leader, others := r.WaitInSync()
	b.size(1400, 900, "light")
	row := func() string {
		t.Helper()
		return strings.Join(eval[[]string](b, "[...document.querySelectorAll('#replica tbody tr > *')].slice(4, 8).map((e) => e.innerText)"), " ")
	}
	for _, tt := range []struct {
		role, want string
		of         *member
	}{{"leader", "yes 1 1 –", leader}, {"standby", "– – – yes", others[0]}} {
		b.do(chromedp.Navigate("http://" + tt.of.address + "/"))
		b.see("#live", "live")
		b.see("#problems", "Nothing needs attention")
		b.see("#replica", tt.role, namespace+"/kubeferry")
		eventually(t, wide, "the row of the "+tt.role, func() error {
			if got := row(); got != tt.want {
				return fmt.Errorf("got %q, want %q", got, tt.want)
			}
			return nil
		})
		if got := eval[bool](b, "document.querySelector('#pipelines').hidden"); got != (tt.role == "standby") {
			t.Errorf("%s: the pipelines are hidden: %v", tt.role, got)
		}
		b.screenshot("page-" + tt.role)
	}
}
