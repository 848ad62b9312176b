package browsertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
)

// shop sets timers as a web shop might: thousands that wait, some that die,
// and, until ctx ends, some that fire in every second.
func shop(ctx context.Context, t *testing.T, d *deployment, waiting, perSecond int) {
	t.Helper()
	nc := d.ns.Connect(t)
	c, err := client.New(nc)
	require.NoError(t, err)
	topics := []string{"orders.close", "orders.close", "orders.close", "orders.close", "carts.abandoned", "carts.abandoned", "invoices.remind", "sessions.expire", "sessions.expire", "shipping.recheck", "coupons.end"}
	set := func(i int, in time.Duration) {
		topic := topics[rand.IntN(len(topics))]
		id := fmt.Sprintf("%s-%d", topic[:5], 480_000+i)
		m := &nats.Msg{Subject: "timers.set." + topic, Header: nats.Header{"Timer-Id": {id}, "Timer-Schedule": {"@in " + in.String()}, "Content-Type": {"application/json"}}}
		m.Data = fmt.Appendf(nil, `{"order":%d,"customer":"c-%d","total":%d.%02d,"lines":[{"sku":"A-100","count":2},{"sku":"B-7","count":1}]}`, 480_000+i, rand.IntN(9000), rand.IntN(300), rand.IntN(100))
		require.NoError(t, nc.PublishMsg(m))
	}
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.Stream(ctx, "TIMERS")
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgSize = 2000
	for i := range 3 {
		_, err := c.Set(ctx, "invoices.remind", make([]byte, 2500), client.In(500*time.Millisecond), client.ID(fmt.Sprintf("invoice-2031-00%d", 117+i)), client.Header("Content-Type", "application/pdf"))
		require.NoError(t, err)
	}
	_, err = js.UpdateStream(ctx, cfg)
	require.NoError(t, err)
	_, err = c.Set(ctx, "orders.close", []byte(`{"order":479999,"customer":"c-1042","total":129.90,"lines":[{"sku":"A-100","count":2},{"sku":"B-7","count":1}]}`), client.In(36*time.Minute),
		client.ID("order-479999"), client.Header("Content-Type", "application/json"), client.Header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"))
	require.NoError(t, err)
	for i := range waiting {
		set(i, 20*time.Second+time.Duration(rand.ExpFloat64()*float64(6*time.Hour)))
	}
	require.NoError(t, nc.Flush())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := waiting; ctx.Err() == nil && !nc.IsClosed(); i++ {
			in := 2*time.Second + time.Duration(rand.ExpFloat64()*float64(2*time.Second))
			set(i, in)
			pause := time.Duration(rand.ExpFloat64() * float64(time.Second) / float64(perSecond))
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() { <-done })
}

// TestLooks takes the pictures of README.md: SCREENSHOTS names the directory
// and lets more happen before (make screenshots).
func TestLooks(t *testing.T) {
	dir, pause := os.Getenv("SCREENSHOTS"), time.Duration(0)
	if dir == "" {
		dir = t.TempDir()
	} else {
		pause = 60 * time.Second
	}
	d := deploy(t)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	shop(ctx, t, d, 3000, 40)
	b := newTab(t, d.HTTP)
	b.size(1280, 900, "light")
	b.open("/")
	b.until(`document.querySelector('#fired tbody tr') && document.querySelectorAll('#dead tbody tr').length === 3 && document.querySelector('#topics tbody tr')`)
	time.Sleep(pause) // the plots need something to show
	for _, look := range []struct {
		name, scheme  string
		width, height int64
	}{{"light", "light", 1200, 860}, {"dark", "dark", 1200, 860}, {"phone", "light", 390, 844}} {
		b.size(look.width, look.height, look.scheme)
		// A list of boxes that reach beyond the screen, where nothing scrolls.
		wide := value[[]string](b, `[...document.querySelectorAll('body *')].filter((e) => !e.closest('.vh, .skip, svg') && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 100))`)
		require.Empty(t, wide, "%s: wider than the screen", look.name)
		require.False(t, value[bool](b, `document.documentElement.scrollWidth > innerWidth`), look.name)
		require.Empty(t, value[[]string](b, accessibility), "%s: hard to use", look.name)
		png := result(b, chromedp.CaptureScreenshot())
		require.NoError(t, os.WriteFile(filepath.Join(dir, "page-"+look.name+".png"), png, 0o644))
		require.Less(t, len(png), 200_000, look.name)
	}
	b.size(1200, 860, "dark")
	b.run(js(fmt.Sprintf("sessionStorage.setItem('lapse-token', %q)", secret)), fill("#find-topic", "orders.close"), fill("#find-id", "order-479999"), chromedp.Click("#find button"))
	b.until(`document.querySelector('#timer pre')`)
	require.Empty(t, value[[]string](b, accessibility), "dialog: hard to use")
	png := result(b, chromedp.CaptureScreenshot())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "page-timer.png"), png, 0o644))
	b.clean()
}

// accessibility lists what a person with another pointer, screen or eyes would
// stumble over: controls without a name, images without a text, tables without
// a caption, ids that are there twice, and text with too little contrast (WCAG
// 2.2, 1.4.3).
const accessibility = `(() => {
  const bad = [];
  const name = (e) => e.getAttribute('aria-label') || (e.getAttribute('aria-labelledby') && document.getElementById(e.getAttribute('aria-labelledby'))?.textContent) ||
    [...(e.labels || [])].map((l) => l.textContent).join('') || e.textContent || e.title;
  for (const e of document.querySelectorAll('button, input, select, a, summary, dialog, form[role], [role=img], [role=group]'))
    if (!name(e).trim()) bad.push('no name: ' + e.outerHTML.slice(0, 120));
  for (const e of document.querySelectorAll('img:not([alt])')) bad.push('no alt: ' + e.outerHTML);
  for (const e of document.querySelectorAll('table')) if (!e.caption) bad.push('no caption: #' + e.id);
  for (const e of document.querySelectorAll('main section')) if (!document.getElementById(e.getAttribute('aria-labelledby'))) bad.push('no heading: ' + e.outerHTML.slice(0, 80));
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) bad.push('twice: #' + id);
  if (!document.documentElement.lang || !document.querySelector('main') || !document.querySelector('h1') || !document.querySelector('[aria-live=polite]')) bad.push('landmarks');
  const rgb = (s) => { const v = s.match(/[\d.]+/g).map(Number); return v.length < 4 ? [...v, 1] : v; };
  const lum = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] > .9) return c; } return [255, 255, 255, 1]; };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, st = getComputedStyle(e);
    if (!walk.currentNode.data.trim() || e.closest('.vh') || !e.checkVisibility()) continue;
    const a = lum(rgb(st.color)), b = lum(ground(e)), ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < (parseFloat(st.fontSize) >= 18.66 ? 3 : 4.5)) bad.push('contrast ' + ratio.toFixed(2) + ': ' + walk.currentNode.data.trim().slice(0, 40));
  }
  return [...new Set(bad)];
})()`
