package faultproxy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// NATS is a proxy before a nats-server. Faults befall operations of the
// protocol, in either direction
// (https://docs.nats.io/reference/reference-protocols/nats-protocol).
type NATS struct {
	gatehouse[Message]
	port int

	open sync.Map // *natsConn that stand, as keys
}

// Message is one operation on its way.
type Message struct {
	Conn    string // the name that the client gave its connection
	Server  bool   // it comes from the server
	Op      string // upper case: PUB, HPUB, SUB, PING from a client; MSG, HMSG, PONG, INFO from the server
	Subject string // of PUB, HPUB, MSG, HMSG
	Reply   string // the reply subject of these, or ""
	Header  string // the block of headers of HPUB and HMSG, as it is
	Body    string
}

// Published says whether a client publishes, with headers or without.
func (m Message) Published() bool { return m.Op == "PUB" || m.Op == "HPUB" }

// Delivered says whether the server hands a message to a client.
func (m Message) Delivered() bool { return m.Op == "MSG" || m.Op == "HMSG" }

// HeaderIs says whether the message has the header with the value.
func (m Message) HeaderIs(name, value string) bool {
	return strings.Contains(m.Header, "\r\n"+name+": "+value+"\r\n")
}

// NewNATS starts a proxy on a free port of 127.0.0.1 before the nats-server at
// addr, host:port, which passes everything. It does not speak TLS.
func NewNATS(addr string) (*NATS, error) {
	p := &NATS{}
	p.network, p.addr, p.gatehouse.serve = "tcp", addr, p.serve
	p.listen = func() (net.Listener, error) {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p.port))
		if err == nil {
			p.port = l.Addr().(*net.TCPAddr).Port
		}
		return l, err
	}
	return p, p.gatehouse.open()
}

// URL is the address of the proxy, without credentials.
func (p *NATS) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", p.port) }

// CutNamed cuts the connections whose client-given name ends with the suffix.
func (p *NATS) CutNamed(suffix string) {
	p.open.Range(func(key, _ any) bool {
		c := key.(*natsConn)
		c.mu.Lock()
		defer c.mu.Unlock()
		if strings.HasSuffix(c.name, suffix) {
			_ = c.client.Close()
		}
		return true
	})
}

// natsConn is one connection. The mutex guards what both directions use.
type natsConn struct {
	client, server net.Conn

	mu   sync.Mutex
	name string
	subs map[string]string // subject by sid
	mute bool              // nothing gets through any more
}

func (p *NATS) serve(client, server net.Conn) {
	c := &natsConn{client: client, server: server, subs: map[string]string{}}
	p.open.Store(c, nil)
	defer p.open.Delete(c)
	var down sync.WaitGroup
	defer down.Wait()
	down.Go(func() {
		defer client.Close()
		defer server.Close()
		p.carry(c, server, client)
	})
	defer client.Close()
	defer server.Close()
	p.carry(c, client, server)
}

// carry passes operations on until a side ends, or a fault says so.
func (p *NATS) carry(c *natsConn, from, to net.Conn) {
	in := bufio.NewReaderSize(from, 64<<10)
	for {
		m, raw, err := c.read(in)
		if err != nil {
			return
		}
		m.Server = from == c.server
		f := p.judge(m)
		switch f.kind {
		case cutFirst:
			return
		case stall:
			c.mu.Lock()
			c.mute = true
			c.mu.Unlock()
		case drop:
			continue
		case answer:
			if c.write(c.client, []byte(f.answer+"\r\n")) != nil {
				return
			}
			continue
		case deliver:
			if c.deliver(m, f.answer) != nil {
				return
			}
			continue
		case delay:
			time.Sleep(f.delay)
		}
		if c.write(to, raw) != nil {
			return
		}
	}
}

func (c *natsConn) write(to net.Conn, b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mute {
		return nil
	}
	_, err := to.Write(b)
	return err
}

// deliver hands the client a body on the reply subject of what it published,
// or on the subject of what it was to be handed.
func (c *natsConn) deliver(m Message, body string) error {
	subject := m.Subject
	if m.Published() {
		subject = m.Reply
	}
	c.mu.Lock()
	sid := ""
	for s, pattern := range c.subs {
		if pattern == subject || strings.HasSuffix(pattern, "*") && strings.HasPrefix(subject, strings.TrimSuffix(pattern, "*")) {
			sid = s
		}
	}
	c.mu.Unlock()
	if sid == "" {
		return fmt.Errorf("nobody on this connection listens to %q", subject)
	}
	if header, rest, ok := strings.Cut(body, "\r\n\r\n"); ok && strings.HasPrefix(body, "NATS/1.0") {
		n := len(header) + 4
		return c.write(c.client, fmt.Appendf(nil, "HMSG %s %s %d %d\r\n%s\r\n", subject, sid, n, n+len(rest), body))
	}
	return c.write(c.client, fmt.Appendf(nil, "MSG %s %s %d\r\n%s\r\n", subject, sid, len(body), body))
}

// read reads one operation.
func (c *natsConn) read(in *bufio.Reader) (m Message, raw []byte, err error) {
	raw, err = in.ReadBytes('\n')
	if err != nil {
		return m, nil, err
	}
	fields := strings.Fields(string(raw))
	if len(fields) == 0 {
		return m, raw, nil
	}
	m.Op = strings.ToUpper(fields[0])
	header, size := 0, -1
	sizes := func(from int, withHeader bool) error {
		if withHeader {
			if header, err = strconv.Atoi(fields[from]); err != nil {
				return err
			}
			from++
		}
		size, err = strconv.Atoi(fields[from])
		return err
	}
	rest := fields[1:]
	c.mu.Lock()
	switch {
	case m.Op == "CONNECT":
		var options struct{ Name string }
		err = json.Unmarshal(raw[len("CONNECT "):], &options)
		c.name = options.Name
	case m.Op == "INFO":
		raw, err = withoutURLs(raw)
	case m.Op == "SUB" && len(rest) >= 2:
		c.subs[rest[len(rest)-1]] = rest[0]
		m.Subject = rest[0]
	case m.Op == "UNSUB" && len(rest) == 1:
		delete(c.subs, rest[0])
	case m.Op == "PUB" && len(rest) >= 2, m.Op == "HPUB" && len(rest) >= 3:
		// PUB subject [reply] size, HPUB subject [reply] header size
		n := 1
		if m.Op == "HPUB" {
			n = 2
		}
		m.Subject = rest[0]
		if len(rest) == n+2 {
			m.Reply = rest[1]
		}
		err = sizes(len(fields)-n, n == 2)
	case m.Op == "MSG" && len(rest) >= 3, m.Op == "HMSG" && len(rest) >= 4:
		// MSG subject sid [reply] size, HMSG subject sid [reply] header size
		n := 1
		if m.Op == "HMSG" {
			n = 2
		}
		m.Subject = rest[0]
		if len(rest) == n+3 {
			m.Reply = rest[2]
		}
		err = sizes(len(fields)-n, n == 2)
	}
	m.Conn = c.name
	c.mu.Unlock()
	if err != nil {
		return m, nil, err
	}
	if size >= 0 {
		b := make([]byte, size+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return m, nil, err
		}
		if header > size {
			return m, nil, fmt.Errorf("%d bytes of headers in %d", header, size)
		}
		raw = append(raw, b...)
		m.Header, m.Body = string(b[:header]), string(b[header:size])
	}
	return m, raw, nil
}

// withoutURLs takes other addresses of the server out of what it says of
// itself: a client that knew them would go round the proxy.
func withoutURLs(info []byte) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(info[len("INFO "):], &fields); err != nil {
		return nil, err
	}
	delete(fields, "connect_urls")
	b, err := json.Marshal(fields)
	return fmt.Appendf(nil, "INFO %s\r\n", b), err
}
