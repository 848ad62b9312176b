package embedded

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// listen is a parsed [NATSOptions.Listen]. It never appears in an error or a
// log as it came: what stands before the @ is secret.
type listen struct {
	host string
	port int
	user string
	pass string
	// token is set when there is no user.
	token string
	// setting is the one that it came from.
	setting string
}

// The settings that hold a listen address.
const (
	settingNATS      = "LAPSE_NATS_LISTEN"
	settingWebSocket = "LAPSE_NATS_WEBSOCKET_LISTEN"
)

func errListen(setting string) error {
	port := "4222"
	if setting == settingWebSocket {
		port = "8422"
	}
	return errors.New("the listen address of the embedded NATS server (" + setting + "): want [user:password@|token@]host:port, such as 127.0.0.1:" + port + "; as in a URL, special characters of the secrets are percent-encoded")
}

// parseListen reads [nats://][user:password@|token@]host:port. Any host but
// loopback needs a secret, unless it is secured otherwise: whoever reaches the
// port may set and read timers.
func parseListen(s, setting string, secured bool) (listen, error) {
	s = strings.TrimSuffix(strings.TrimPrefix(s, "nats://"), "/")
	l := listen{setting: setting}
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		user, pass, pair := strings.Cut(s[:at], ":")
		s = s[at+1:]
		var err1, err2 error
		user, err1 = url.PathUnescape(user)
		pass, err2 = url.PathUnescape(pass)
		switch {
		case err1 != nil || err2 != nil || user == "" || pair && pass == "":
			return l, errListen(setting)
		case pair && isBcrypt(pass), !pair && isBcrypt(user):
			return l, errors.New("the listen address of the embedded NATS server (" + setting + ") holds the hash of a secret: give the secret itself, which Lapse must know to connect")
		case pair:
			l.user, l.pass = user, pass
		default:
			l.token = user
		}
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return l, errListen(setting)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return l, errListen(setting)
	}
	l.host, l.port = host, int(n)
	if !l.isLoopback() && !l.isSecured() && !secured {
		// No word of what came: without an @, a secret may stand where the host should.
		return l, errors.New("the listen address of the embedded NATS server (" + setting + ") is not on loopback, so it needs a password or a token: user:password@host:port or token@host:port")
	}
	return l, nil
}

func (l listen) isSecured() bool { return l.pass != "" || l.token != "" }

func (l listen) isLoopback() bool {
	if strings.EqualFold(l.host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(l.host)
	return err == nil && ip.Unmap().IsLoopback()
}

// isBcrypt says whether nats-server would take the secret for a bcrypt hash
// and so refuse those who present it as it is.
func isBcrypt(s string) bool {
	return len(s) > 4 && s[0] == '$' && s[1] == '2' && strings.IndexByte("abxy", s[2]) >= 0 && s[3] == '$'
}

// addr is host:port, without the secrets.
func (l listen) addr() string { return net.JoinHostPort(l.host, strconv.Itoa(l.port)) }

// reachable is where a client on this machine finds it.
func (l listen) reachable(port int) string {
	host := l.host
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// probe says whether the port can be had, with an error that names the
// remedies. It listens and stops again: nats-server itself would only log.
func (l listen) probe() error {
	if l.port == 0 {
		return nil
	}
	nl, err := net.Listen("tcp", l.addr())
	if err == nil {
		return nl.Close()
	}
	if !errors.Is(err, errInUse) {
		return fmt.Errorf("the embedded NATS server cannot listen on %s: %w; set %s to an address and port of this machine that this user may have", l.addr(), cause(err), l.setting)
	}
	secret := ""
	if l.isSecured() {
		secret = "<secret>@"
	}
	if l.setting == settingWebSocket {
		return fmt.Errorf("the embedded NATS server cannot listen for browsers on %s: the port is in use; set %s=%s%s",
			l.addr(), l.setting, secret, net.JoinHostPort(l.host, strconv.Itoa(l.freeNear())))
	}
	return fmt.Errorf("the embedded NATS server cannot listen on %s: the port is in use; "+
		"to use the NATS server that is there: LAPSE_NATS_URL=nats://%s%s LAPSE_REDIS_URL=embedded lapse serve; "+
		"to listen elsewhere: LAPSE_NATS_LISTEN=%s%s lapse serve",
		l.addr(), secret, l.reachable(l.port), secret, net.JoinHostPort(l.host, strconv.Itoa(l.freeNear())))
}

// freeNear is a port that is free now, the next one where possible; 0, which
// lets the system choose, when a few more are taken.
func (l listen) freeNear() int {
	for port := l.port + 1; port <= min(l.port+16, 1<<16-1); port++ {
		if nl, err := net.Listen("tcp", net.JoinHostPort(l.host, strconv.Itoa(port))); err == nil {
			_ = nl.Close() // it accepted nobody
			return port
		}
	}
	return 0
}

// cause drops what net repeats about the address.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
