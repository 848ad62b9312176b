package embedded

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"time"
)

// Found is where the embedded servers of a running Lapse are.
type Found struct {
	RedisURL string // "" when no redis-server answers in the data directory
	NATSURL  string // with the secrets; "" when the address is wrong or names no port
	Absent   string // what to say when one is not there
}

// Find looks for the embedded servers of a Lapse that runs on the data directory,
// and leaves everything as it is: no lock is taken, nothing is made. Nobody may
// listen at NATSURL. Call close when their connections are closed.
func Find(dataDir, natsListen string) (f Found, close func()) {
	close = func() {}
	path, err := filepath.Abs(dataDir)
	if err != nil {
		path = dataDir
	}
	f.Absent = fmt.Sprintf("no Lapse runs with its own servers in %s (LAPSE_DATA_DIR) and NATS at %s (LAPSE_NATS_LISTEN)", path, redactListen(natsListen))
	if s, err := openSocket(filepath.Join(path, "redis"), sockFile); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if s.knock(ctx) == nil {
			f.RedisURL, close = s.url(), s.close
		} else {
			s.close()
		}
	}
	if l, err := parseListen(natsListen, settingNATS, false); err == nil && l.port != 0 {
		u := url.URL{Scheme: "nats", Host: l.reachable(l.port)}
		switch {
		case l.pass != "":
			u.User = url.UserPassword(l.user, l.pass)
		case l.token != "":
			u.User = url.User(l.token)
		}
		f.NATSURL = u.String()
	}
	return f, close
}

// redactListen is the address without what stands before the @.
func redactListen(s string) string {
	l, err := parseListen(s, settingNATS, false)
	if err != nil {
		return "an address that cannot be read"
	}
	return l.addr()
}
