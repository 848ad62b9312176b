package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/service"
	"github.com/lapse-timers/lapse/timers/settings"
	"github.com/lapse-timers/lapse/timers/wire"
)

// natsSide is the connection to NATS. It is not the service's own: what NATS
// refuses to it must not look like a fault of the service.
type natsSide struct {
	nc  *service.Conn // nil when it does not answer
	cli string        // the nats command that reaches it

	mu     sync.Mutex
	denied []string // rights that NATS refused: "publish to x"
	give   func()   // ends what waits for an answer that will not come
}

func (n *natsSide) close() {
	if n.nc != nil {
		n.nc.Close()
	}
}

// asking is ctx for one question: it ends when NATS refuses it, which no answer
// tells.
func (n *natsSide) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.denied, n.give = nil, cancel
	return ctx, cancel
}

// refusal is what NATS refused since the last call of asking, or "".
func (n *natsSide) refusal() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.denied, ", ")
}

func (n *natsSide) asyncError(_ *nats.Subscription, err error) {
	right, subject, ok := service.DeniedRight(err)
	if !ok {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if right == "subscription" {
		right = "subscribe" // as a person says it
	}
	n.denied = append(n.denied, right+" to "+subject)
	if n.give != nil {
		n.give()
	}
}

func (e *exam) lookAtNATS(ctx context.Context) {
	if !e.reachNATS() {
		return
	}
	e.checkPayload()
	e.checkPermissions(ctx, e.checkStreams(ctx))
}

func (e *exam) reachNATS() bool {
	f := wire.Finding{Check: "nats-reachable", Part: "nats", Found: e.d.Absent, Wanted: "a nats-server that answers", Why: "no request comes in, no timer is delivered"}
	if e.d.NATS.URL == "" {
		f.Remedy = lines(runsElsewhere...)
		e.found(f, nil)
		return false
	}
	e.nats.cli = natsCLI(e.d.NATS)
	nc, err := service.Connect(e.d.NATS, "lapse doctor", false)
	if err != nil {
		f.Found = err.Error()
		switch {
		case e.cfg.NATSURL == settings.Embedded && !errors.Is(err, service.ErrAuth):
			f.Found, f.Remedy = e.d.Absent, lines(runsElsewhere...)
		case errors.Is(err, service.ErrAuth):
			f.Remedy = "LAPSE_NATS_URL=nats://user:password@host:port"
		case wire.TLSRemedy(err) != "":
			f.Remedy = "# " + wire.TLSRemedy(err)
		default:
			f.Remedy = "# start nats-server there, or name another one in LAPSE_NATS_URL"
		}
		e.found(f, nil)
		return false
	}
	nc.OnError(e.nats.asyncError)
	e.nats.nc = nc
	e.ok("nats", "nats-reachable", "%s, nats-server %s", service.Redact(e.d.NATS.URL), nc.ConnectedServerVersion())
	return true
}

// natsCLI is how a person reaches the server, without secrets.
func natsCLI(c service.ConnConfig) string {
	first, _, _ := strings.Cut(c.URL, ",")
	if !strings.Contains(first, "://") {
		first = "nats://" + first
	}
	cmd := "nats"
	if u, err := url.Parse(first); err == nil {
		u.User = nil
		if u.String() != nats.DefaultURL {
			cmd += " --server " + quoted(u.String())
		}
	}
	if c.Creds != "" {
		cmd += " --creds " + quoted(c.Creds)
	}
	return cmd
}

// smallPayload is a max_payload that is less than people expect of NATS.
const smallPayload = 64 << 10

func (e *exam) checkPayload() {
	if n := e.nats.nc.MaxPayload(); n < smallPayload {
		e.found(wire.Finding{Check: "max-payload", Part: "nats", Status: wire.FindingWarn, Found: "max_payload " + size(n), Wanted: "at least " + size(smallPayload) + "; 1MB is the default",
			Why: "larger timers answer 413, and pages of a listing are short", Remedy: lines("nats-server.conf: max_payload: 1MB", "nats-server --signal reload", "# then restart Lapse, which learns it when it connects")}, nil)
	} else {
		e.ok("nats", "max-payload", size(n))
	}
}

// userInfo is what nats-server tells a user of itself.
type userInfo struct {
	Data struct {
		User        string `json:"user"`
		Permissions *struct {
			Publish   subjects        `json:"publish"`
			Subscribe subjects        `json:"subscribe"`
			Responses json.RawMessage `json:"responses"`
		} `json:"permissions"`
	} `json:"data"`
	Error *struct {
		Description string `json:"description"`
	} `json:"error"`
}

type subjects struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

const userInfoSubject = "$SYS.REQ.USER.INFO"

// checkPermissions asks the server what the user may do. Trying it out would
// show fired events to their subscribers that are none. makes says that Lapse has
// yet to make its stream.
func (e *exam) checkPermissions(ctx context.Context, makes bool) {
	ask, cancel := e.nats.asking(ctx)
	defer cancel()
	m, err := e.nats.nc.RequestWithContext(ask, userInfoSubject, nil)
	var u userInfo
	if err == nil {
		err = json.Unmarshal(m.Data, &u)
	}
	if err == nil && u.Error != nil {
		err = errors.New(u.Error.Description)
	}
	if err != nil {
		if denied := e.nats.refusal(); denied != "" {
			err = errors.New("refused: " + denied)
		}
		why := fmt.Sprintf("the server does not tell (%v)", err)
		remedy := fmt.Sprintf("# allow the user to publish %q, or try lapse set, lapse list and lapse status: nats-server logs every violation", userInfoSubject)
		e.unknown("nats", "publish-rights", why, remedy)
		e.unknown("nats", "subscribe-rights", why, remedy)
		return
	}
	if u.Data.Permissions == nil {
		e.ok("nats", "publish-rights", "no permissions are set")
		e.ok("nats", "subscribe-rights", "no permissions are set")
		return
	}
	p := u.Data.Permissions
	publish := []string{e.prefix.Fired(">"), e.prefix.Dead(">"), "$SRV.INFO." + e.prefix.ServiceName()}
	if len(p.Responses) == 0 {
		publish = append(publish, "_INBOX.>")
	}
	if e.cfg.Delivery == "jetstream" {
		publish = append(publish, "$JS.API.STREAM.LIST")
	}
	if makes {
		publish = append(publish, "$JS.API.STREAM.CREATE."+e.cfg.Stream)
	}
	e.judgeRights("publish", u.Data.User, p.Publish, publish)
	subscribe := append(service.RequestSubjects(e.prefix), "$SRV.>", "_INBOX.>")
	e.judgeRights("subscribe", u.Data.User, p.Subscribe, subscribe)
}

func (e *exam) judgeRights(kind, user string, have subjects, needed []string) {
	var missing, barred []string
	for _, n := range needed {
		if len(have.Allow) > 0 && !service.Covers(plain(have.Allow), n) {
			missing = append(missing, n)
		}
		for _, d := range plain(have.Deny) {
			if overlap(d, n) {
				barred = append(barred, d)
			}
		}
	}
	if len(missing)+len(barred) == 0 {
		e.ok("nats", kind+"-rights", "user %s has what Lapse needs", user)
		return
	}
	f := wire.Finding{Check: kind + "-rights", Part: "nats", Found: fmt.Sprintf("user %s may not %s: %s", user, kind, strings.Join(append(missing, barred...), ", ")),
		Wanted: "all of " + strings.Join(needed, ", "), Why: "requests go unanswered, or timers are not delivered"}
	var remedy []string
	if len(missing) > 0 {
		remedy = append(remedy, fmt.Sprintf("# add to permissions.%s of the user in nats-server.conf: %s", kind, inConf(missing)))
	}
	if len(barred) > 0 {
		remedy = append(remedy, fmt.Sprintf("# take out of permissions.%s.deny: %s", kind, inConf(barred)))
	}
	f.Remedy = lines(append(remedy, "nats-server --signal reload")...)
	e.found(f, nil)
}

// inConf are the subjects as a list of nats-server.conf has them.
func inConf(subjects []string) string { return `"` + strings.Join(subjects, `", "`) + `"` }

// plain are the subjects without the queue groups that may stand behind them.
func plain(list []string) []string {
	out := make([]string, 0, len(list))
	for _, s := range list {
		if w := strings.Fields(s); len(w) > 0 {
			out = append(out, w[0])
		}
	}
	return out
}

// overlap says whether there is a subject that both match.
func overlap(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; ; i++ {
		switch {
		case i == len(x) || i == len(y):
			return len(x) == len(y)
		case x[i] == ">" || y[i] == ">":
			return true
		case x[i] != "*" && y[i] != "*" && x[i] != y[i]:
			return false
		}
	}
}
