package browsertest

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// TestBrowserSubscribes has the page of docs/browser, with the NATS client for
// browsers, hear what fires, on the embedded server's WebSocket port.
func TestBrowserSubscribes(t *testing.T) {
	example, err := filepath.Abs(filepath.Join("..", "..", "docs", "browser"))
	require.NoError(t, err)
	_, err = os.Stat(filepath.Join(example, "node_modules", "@nats-io", "nats-core"))
	require.NoError(t, err, "what docs/browser needs is not installed; make test-browser does it, or: npm ci --prefix docs/browser")
	// Built beside the page's files and elsewhere than people build it.
	root := t.TempDir()
	build := exec.Command(filepath.Join(example, "node_modules", ".bin", "esbuild"), "app.js", "--bundle", "--format=esm", "--outfile="+filepath.Join(root, "out", "app.js"))
	build.Dir = example
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	html, err := os.ReadFile(filepath.Join(example, "index.html"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, "index.html"), html, 0o600))
	web := httptest.NewServer(http.FileServer(http.Dir(root)))
	t.Cleanup(web.Close)

	natsAddr, wsAddr := freeAddr(t), freeAddr(t)
	l := timerstest.Lapse(t, "LAPSE_DATA_DIR="+t.TempDir(), "LAPSE_NATS_LISTEN="+natsAddr, "LAPSE_NATS_WEBSOCKET_LISTEN=browsers@"+wsAddr)
	l.Start()
	require.Regexp(t, regexp.MustCompile(`"websocket":"ws://`+regexp.QuoteMeta(wsAddr)), l.Log())
	require.NotContains(t, l.Log(), "browsers@")
	nc, err := nats.Connect("nats://" + natsAddr) // which has no secret
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	lapse, err := client.New(nc)
	require.NoError(t, err)

	b := newTab(t, strings.TrimPrefix(web.URL, "http://"))
	b.run(chromedp.Navigate(web.URL + "/?server=ws://" + wsAddr + "&topic=orders.%3E&token=browsers"))
	b.until(`document.querySelector('#state').textContent.startsWith('connected')`)
	for _, topic := range []string{"invoices.due", "orders.close"} {
		_, err = lapse.Set(t.Context(), topic, []byte("<b>42</b>"), client.In(10*time.Millisecond), client.ID("order 42"))
		require.NoError(t, err)
	}
	b.until(`document.querySelectorAll('#fired tr').length === 1`)
	row := value[[]string](b, `[...document.querySelectorAll('#fired td')].map((e) => e.textContent)`)
	require.Len(t, row, 4)
	require.Equal(t, []string{"orders.close", "order 42"}, row[:2])
	require.Equal(t, "<b>42</b>", row[3])
	b.clean()
}
