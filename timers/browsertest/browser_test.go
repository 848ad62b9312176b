package browsertest

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/timerstest"
)

// soon is how long anything may take that comes within a second or two on a
// machine with nothing else to do.
const soon = 30 * time.Second

// chromium is one browser for all tests of this package; each has tabs of its
// own.
var chromium = sync.OnceValues(func() (context.Context, error) {
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true), // a container's is small
		chromedp.WSURLReadTimeout(soon))
	if os.Getuid() == 0 {
		opts = append(opts, chromedp.NoSandbox)
	}
	alloc, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, _ := chromedp.NewContext(alloc)
	stopBrowser = func() {
		_ = chromedp.Cancel(ctx) // it is over either way
		cancel()
	}
	return ctx, chromedp.Do(ctx)
})

var stopBrowser = func() {}

func TestMain(m *testing.M) {
	code := m.Run()
	stopBrowser()
	os.Exit(code)
}

// tab is a tab and what went wrong in it.
type tab struct {
	t    *testing.T
	ctx  context.Context
	home string // host:port that it may load from

	mu     sync.Mutex
	wrongs []string
	cut    bool // the server is away: failed requests are no fault
}

// newTab opens a tab of a browser profile of its own that may load from home
// and nowhere else.
func newTab(t *testing.T, home string) *tab {
	t.Helper()
	browser, err := chromium()
	require.NoError(t, err, "Chromium does not start; make test-browser installs it")
	b := &tab{t: t, home: home}
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext(), chromedp.WithListener(func(ev any) {
		switch e := ev.(type) {
		case *runtime.EventExceptionThrown:
			b.wrong("exception: %s", e.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning || e.Type == runtime.ConsoleAPICalledTypeAssert {
				b.wrong("console: %s %v", e.Type, e.Args)
			}
		case *log.EventEntryAdded: // violations of the policy, failed requests
			b.mu.Lock()
			// What the API refuses is refused to a test that wants it so.
			refused := strings.Contains(e.Entry.URL, "/api/") || e.Entry.URL == "" && strings.Contains(e.Entry.Text, "status of 401")
			expected := e.Entry.Source == log.EntrySourceNetwork && (b.cut || refused)
			b.mu.Unlock()
			if !expected {
				b.wrong("log: %s %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
			}
		case *network.EventRequestWillBeSent:
			if u, err := url.Parse(e.Request.URL); err != nil || u.Host != b.home && u.Scheme != "ws" && u.Scheme != "data" && u.Scheme != "about" {
				b.wrong("request to %s", e.Request.URL)
			}
		}
	}))
	t.Cleanup(cancel)
	b.ctx = ctx
	require.NoError(t, chromedp.Do(ctx))
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	return b
}

func (b *tab) wrong(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrongs = append(b.wrongs, fmt.Sprintf(format, args...))
}

// clean says that nothing went wrong so far.
func (b *tab) clean() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.wrongs)
}

// call runs a command of the protocol.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, soon)
	defer cancel()
	_, err := chromedp.Call(ctx, command, params)
	require.NoError(b.t, err)
}

// result runs an action and gives what it found.
func result[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, soon)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	require.NoError(b.t, err)
	return v
}

func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, soon)
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, actions...))
}

// open loads a path of home and returns when the page is live.
func (b *tab) open(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate("http://" + b.home + path))
	b.until(`document.querySelector('#live').dataset.state === 'ok' && document.querySelector('#parts [data-state=ok]') !== null`)
}

// value is what the expression gives.
func value[T any](b *tab, expression string) T {
	b.t.Helper()
	return result(b, chromedp.Evaluate[T](expression))
}

// until waits for the expression to hold; one that throws does not, yet.
func (b *tab) until(expression string) {
	b.t.Helper()
	deadline := time.Now().Add(soon)
	for {
		if value[bool](b, "(() => { try { return Boolean("+expression+"); } catch { return false; } })()") {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("it never came true: %s\nThe page says:\n%s\nWrong: %v", expression, value[string](b, "document.body.innerText"), b.wrongs)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// size gives the tab a screen; scheme is light or dark.
func (b *tab) size(width, height int64, scheme string) {
	b.t.Helper()
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 600})
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

const token = "the token of the tests"

// secret has no space, as a token must not.
var secret = strings.ReplaceAll(token, " ", "-")

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// deployment is an instance with its servers.
type deployment struct {
	*timerstest.LapseServer
	ns *timerstest.NATSServer
}

func deploy(t *testing.T, settings ...string) *deployment {
	t.Helper()
	rs, ns := timerstest.Redis(t), timerstest.NATS(t)
	settings = append([]string{"LAPSE_HTTP_LISTEN=" + freeAddr(t), "LAPSE_HTTP_TOKEN=" + secret, "LAPSE_SHUTDOWN_GRACE=1s"}, settings...)
	return &deployment{timerstest.LapseOn(t, rs.URL(), ns.URL(), settings...), ns}
}

// heapOf is what the page's scripts keep, in bytes, after a collection.
func heapOf(b *tab) int64 {
	b.t.Helper()
	call(b, heapprofiler.CollectGarbage, cdp.Empty{})
	ctx, cancel := context.WithTimeout(b.ctx, soon)
	defer cancel()
	usage, err := chromedp.Call(ctx, runtime.GetHeapUsage, cdp.Empty{})
	require.NoError(b.t, err)
	return int64(usage.UsedSize)
}
