package browsertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/web"
	"github.com/lapse-timers/lapse/timers/web/page"
	"github.com/lapse-timers/lapse/timers/wire"
)

// js runs a statement in the page.
func js(statement string) chromedp.Action[chromedp.Void] {
	return chromedp.Evaluate[chromedp.Void]("void(" + statement + ")")
}

// fill gives a field a value, if only "".
func fill(selector, value string) chromedp.Action[chromedp.Void] {
	return js(fmt.Sprintf("document.querySelector(%q).value = %q", selector, value))
}

// step is a subtest that goes on in the tab where the last one ended.
func step(t *testing.T, b *tab, name string, f func(t *testing.T)) {
	t.Helper()
	ok := t.Run(name, func(t *testing.T) {
		b.t = t
		f(t)
	})
	b.t = t
	require.True(t, ok, "the next step would begin elsewhere")
}

// TestPage goes through what an operator does, on one deployment.
func TestPage(t *testing.T) {
	d := deploy(t)
	nc := d.ns.Connect(t)
	lapse, err := client.New(nc)
	require.NoError(t, err)
	set := func(topic, id string, payload string, in time.Duration, opts ...client.SetOption) {
		t.Helper()
		_, err := lapse.Set(t.Context(), topic, []byte(payload), client.In(in), append(opts, client.ID(id))...)
		require.NoError(t, err)
	}
	exists := func(topic, id string) bool {
		_, err := lapse.Get(t.Context(), topic, id)
		return err == nil
	}
	set("orders", "order 42", `{"b":1,"a":9007199254740993,"s":"x,{}"}`, time.Hour, client.Header("X-Kind", "<b>bold</b>"))
	b := newTab(t, d.HTTP)
	b.size(1280, 930, "light")
	b.open("/")
	find := func(topic, id string) {
		t.Helper()
		b.run(fill("#find-topic", topic), fill("#find-id", id), chromedp.Click("#find button"))
	}
	text := func(selector string) string {
		t.Helper()
		return value[string](b, fmt.Sprintf("document.querySelector(%q)?.textContent ?? ''", selector))
	}
	shut := func() {
		t.Helper()
		b.run(chromedp.KeyEvent(kb.Escape))
		b.until("!document.querySelector('dialog[open]')")
	}

	step(t, b, "live values move", func(t *testing.T) {
		b.until(`document.querySelector('#pending').textContent === '1'`)
		for i := range 10 {
			set("quick.a", fmt.Sprint("q", i), "x", 0)
		}
		b.until(`[...document.querySelectorAll('#fired tbody tr')].some((r) => r.cells[1].textContent === 'q7' && r.cells[2].textContent === 'quick.a' && /ms|s/.test(r.cells[3].textContent) && /event|sweep/.test(r.cells[4].textContent))`)
		b.until(`document.querySelector('#p99').textContent !== '–' && document.querySelector('#plot-rate path').getAttribute('d').length > 20`)
		b.until(`document.querySelector('#due tbody tr').cells[1].textContent === 'order 42'`)
		b.until(`document.querySelector('#topics tbody tr').cells[1].textContent === '1'`)
	})

	step(t, b, "payloads need the token", func(t *testing.T) {
		find("orders", "order 42")
		b.until(`document.querySelector('#timer dl')`)
		require.Contains(t, text("#timer-body"), "need the token")
		require.NotContains(t, text("#timer-body"), "9007199254740993")
		require.NotContains(t, text("#timer-body"), "bold")
		shut()
	})

	step(t, b, "unlock", func(t *testing.T) {
		b.run(chromedp.Click("#lock"), chromedp.SendKeys("#token", "the-wrong-one-of-all"+kb.Enter))
		b.until(`document.querySelector('#unlock-error').textContent.includes('wrong')`)
		b.run(fill("#token", ""), chromedp.SendKeys("#token", secret+kb.Enter))
		b.until(`!document.querySelector('#unlock').open && document.querySelector('#lock').textContent === 'Lock changes'`)
	})

	step(t, b, "payload in three forms", func(t *testing.T) {
		find("orders", "order 42")
		b.until(`document.querySelector('#timer pre')`)
		require.Equal(t, "{\n  \"b\": 1,\n  \"a\": 9007199254740993,\n  \"s\": \"x,{}\"\n}", text("#timer pre"))
		require.Contains(t, text("#timer .heads"), "<b>bold</b>")
		click := func(view string) {
			b.run(js(fmt.Sprintf("[...document.querySelectorAll('.views button')].find((e) => e.textContent === %q).click()", view)))
		}
		click("Text")
		require.Equal(t, `{"b":1,"a":9007199254740993,"s":"x,{}"}`, text("#timer pre"))
		click("Hex")
		require.True(t, strings.HasPrefix(text("#timer pre"), "00000000  7b 22 62 22"), text("#timer pre"))
		shut()
	})

	step(t, b, "a payload does not stop the page", func(t *testing.T) {
		for id, payload := range map[string]string{"deep": strings.Repeat("[", 50_000) + strings.Repeat("]", 50_000), "flat": "[" + strings.Repeat("[],", 60_000) + "1]"} {
			set("heavy", id, payload, time.Hour)
			find("heavy", id)
			b.until(`document.querySelector('#timer pre').textContent.startsWith('[\n  [')`)
			require.Contains(t, text("#timer pre"), "characters more")
			shut()
			_, err := lapse.Cancel(t.Context(), "heavy", id)
			require.NoError(t, err)
		}
	})

	step(t, b, "what is hostile is text", func(t *testing.T) {
		ids := []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, "a\u202Egnp.exe", "\u05e2\u05d1\u05e8\u05d9\u05ea", "😀 {colon:s}/../", strings.Repeat("long ", 40)[:199] + "!", "javascript:alert(1)//"}
		for i, id := range ids {
			set("hostile", id, `<img src=x onerror="alert(1)"><script>alert(2)</script>`+"\u202e\x00", 30*time.Minute+time.Duration(i)*time.Second, client.Header("X", `<svg onload=alert(1)>`))
			set("hostile.now", id, "x", 0)
		}
		before := value[int](b, `document.querySelectorAll('script, img, svg').length`)
		for _, id := range ids {
			title := fmt.Sprintf("[...document.querySelectorAll('#due tbody button')].find((e) => e.title === %q)", id)
			b.until(title)
			b.until(fmt.Sprintf("[...document.querySelectorAll('#fired tbody button')].find((e) => e.title === %q)", id))
			b.run(js(title + ".click()"))
			b.until(`document.querySelector('#timer pre')`)
			require.Equal(t, "hostile", text("#timer dd"))
			require.Contains(t, text("#timer pre"), "<script>alert(2)</script><U+202E><U+0000>")
			require.Equal(t, strings.ReplaceAll(id, "\u202e", "<U+202E>"), text("#timer-title"))
			require.False(t, value[bool](b, `document.querySelector('#timer').scrollWidth > document.querySelector('#timer').clientWidth`), id)
			shut()
		}
		require.Equal(t, before, value[int](b, `document.querySelectorAll('script, img, svg').length`))
		b.clean()
	})

	step(t, b, "list of a topic", func(t *testing.T) {
		find("hostile", "")
		b.until(`document.querySelectorAll('#timer .list tbody tr').length === 7`)
		shut()
		find("nothing.here", "x")
		b.until(`document.querySelector('#timer-error').textContent.includes('no timer')`)
		shut()
	})

	step(t, b, "set anew and cancel", func(t *testing.T) {
		find("orders", "order 42")
		b.until(`document.querySelector('#schedule')`)
		b.run(chromedp.SendKeys("#schedule", "@in 3x"+kb.Enter))
		b.until(`document.querySelector('#timer-error').textContent.includes('@in')`)
		b.run(fill("#schedule", ""), chromedp.SendKeys("#schedule", "@in 5h"+kb.Enter))
		b.until(`document.querySelector('#timer dl').textContent.includes('@in 5h')`)
		got, err := lapse.Get(t.Context(), "orders", "order 42")
		require.NoError(t, err)
		require.Equal(t, `{"b":1,"a":9007199254740993,"s":"x,{}"}`, string(got.Payload))
		require.Equal(t, nats.Header{"X-Kind": {"<b>bold</b>"}}, got.Header)
		require.Greater(t, time.Until(got.Due), 4*time.Hour)
		b.run(chromedp.Click("#timer button.danger"))
		require.True(t, exists("orders", "order 42"), "asked twice")
		b.run(chromedp.Click("#timer button.danger"))
		b.until(`document.querySelector('#timer-body').textContent.includes('will not be delivered')`)
		require.False(t, exists("orders", "order 42"))
		shut()
	})

	step(t, b, "by keyboard", func(t *testing.T) {
		set("keys", "k 1", "x", time.Minute)
		b.run(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, 2, 2)) // off the tables, which would stand still
		b.run(js("document.activeElement.blur()"), chromedp.KeyEvent("/"))
		require.Equal(t, "find-topic", value[string](b, "document.activeElement.id"))
		b.run(fill("#find-topic", ""), fill("#find-id", ""), chromedp.KeyEvent("keys"), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent("k 1"), chromedp.KeyEvent(kb.Enter))
		b.until(`document.querySelector('#timer pre') && document.querySelector('#timer-title').textContent === 'k 1'`)
		require.True(t, value[bool](b, "document.querySelector('#timer').contains(document.activeElement)"))
		// Tab does not leave the dialog, and every stop can be seen.
		for range 12 {
			b.run(chromedp.KeyEvent(kb.Tab))
			require.True(t, value[bool](b, "document.activeElement === document.body || document.querySelector('#timer').contains(document.activeElement)"))
			require.True(t, value[bool](b, "document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle !== 'none'"))
		}
		shut()
		// The focus comes back, and a table with the focus in it stands still.
		require.Equal(t, "find-id", value[string](b, "document.activeElement.id"))
		b.run(chromedp.Focus("#due tbody button"))
		kept := value[string](b, "document.activeElement.title")
		set("keys", "k 0", "x", 50*time.Second)
		b.until(`!document.querySelector('#h-due .held').hidden`)
		b.until(`document.querySelector('#pending').textContent === '9'`)
		require.Equal(t, kept, value[string](b, "document.activeElement.title"))
		b.run(chromedp.Blur("#due tbody button"))
		b.until(`document.querySelector('#due tbody button').title === 'k 0'`)
	})

	step(t, b, "without the token", func(t *testing.T) {
		b.run(chromedp.Click("#lock"))
		b.until(`document.querySelector('#lock').textContent === 'Unlock changes'`)
		find("keys", "k 1")
		b.until(`document.querySelector('#timer dl')`)
		require.False(t, value[bool](b, `document.querySelector('#timer button.danger') !== null`))
		shut()
		code := value[int](b, `(() => { const x = new XMLHttpRequest(); x.open('POST', '/api/cancel', false); x.setRequestHeader('Content-Type', 'application/json'); x.send('{"topic":"keys","id":"k 1","rev":0}'); return x.status; })()`)
		require.Equal(t, http.StatusUnauthorized, code)
		require.True(t, exists("keys", "k 1"))
	})

	step(t, b, "comes back after a restart", func(t *testing.T) {
		b.mu.Lock()
		b.cut = true
		b.mu.Unlock()
		d.Stop()
		b.until(`document.querySelector('#live').dataset.state === 'fail'`)
		require.Equal(t, "The connection to Lapse is lost. It is tried again.", text("#said"))
		d.Start()
		// Said while it starts, if the page is back that early: its health.
		b.until(`document.querySelector('#live').dataset.state === 'ok' && /^(Connected again|Health is)/.test(document.querySelector('#said').textContent)`)
		// The page may be back before it listens to what fires, so more than one.
		timerstest.Eventually(t, soon, "fires are shown again", func() bool {
			set("after", "the restart", "x", 0)
			time.Sleep(200 * time.Millisecond)
			return value[bool](b, `[...document.querySelectorAll('#fired tbody button')].some((e) => e.title === 'the restart')`)
		})
	})
	b.clean()
}

// TestFindings shows what the checks have found, worst first.
func TestFindings(t *testing.T) {
	ns := timerstest.NATS(t)
	runs := make(chan struct{}, 10)
	p := page.New(page.Options{
		Prefix: "timers", Listen: "127.0.0.1:0",
		Status: func(context.Context) wire.StatusReply {
			return wire.StatusReply{Instance: "i", Now: wire.FormatTime(time.Now()), Health: wire.HealthReply{Status: wire.HealthDegraded, Parts: map[string]wire.HealthPart{
				"redis": {Status: wire.HealthOK}, "subscription": {Status: wire.HealthDegraded, Why: "<i>put this line</i> into redis.conf"},
			}}}
		},
		Topics: func(context.Context) (page.Topics, error) { return page.Topics{}, nil },
		Client: func() (*client.Client, error) { return nil, errors.New("NATS is away") },
		Dial:   func() (*nats.Conn, error) { return nats.Connect(ns.URL()) },
		Doctor: func(context.Context) (any, error) {
			runs <- struct{}{}
			return json.RawMessage(`{"findings":[{"check":"version","part":"redis","status":"ok","found":"7.0.15"},{"check":"eviction policy","part":"redis","status":"fail","found":"allkeys-lru","wanted":"noeviction","why":"timers are lost","remedy":"redis.conf: maxmemory-policy noeviction <b>\nCONFIG REWRITE","fixable":true}],"ok":1,"warn":0,"fail":1,"unknown":0}`), nil
		},
	})
	server := httptest.NewServer(web.New(web.Options{Health: func(context.Context) wire.HealthReply { return wire.HealthReply{} }, Page: p}).Handler())
	t.Cleanup(server.Close)
	t.Cleanup(p.Close)
	b := newTab(t, strings.TrimPrefix(server.URL, "http://"))
	b.size(390, 844, "dark")
	b.open("/")
	b.until(`document.querySelector('#doctor').open && document.querySelector('#doctor-sum').textContent === '1 fail, 1 ok'`)
	require.Equal(t, []string{"fail"}, value[[]string](b, `[...document.querySelectorAll('#findings > li')].map((e) => e.dataset.state)`))
	require.Equal(t, []string{"ok"}, value[[]string](b, `[...document.querySelectorAll('#findings-fine > li')].map((e) => e.dataset.state)`))
	require.Equal(t, "redis.conf: maxmemory-policy noeviction <b>\nCONFIG REWRITE", value[string](b, `document.querySelector('#findings code').textContent`))
	require.Equal(t, "subscription: <i>put this line</i> into redis.conf", value[string](b, `document.querySelector('#why').textContent`))
	b.until(`document.title === 'degraded – Lapse' && document.querySelector('#due-empty').textContent === 'NATS is away'`)
	require.Empty(t, value[[]string](b, accessibility))
	require.False(t, value[bool](b, `document.documentElement.scrollWidth > innerWidth`))
	<-runs
	b.run(chromedp.Click("#check")) // too soon: no more than one in ten seconds
	b.until(`document.querySelector('#said').textContent === 'The checks run again.'`)
	b.clean()
	require.Empty(t, runs)
}
