package timerstest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// NATSServer is a nats-server inside the test binary.
type NATSServer struct {
	t       testing.TB
	options server.Options
	server  *server.Server
}

// NATS starts a nats-server with JetStream on a free port of 127.0.0.1 and
// returns when it takes clients. The functions may change the options before
// the first start.
func NATS(t testing.TB, configure ...func(*server.Options)) *NATSServer {
	t.Helper()
	n := &NATSServer{t: t, options: server.Options{
		Host:      "127.0.0.1",
		Port:      server.RANDOM_PORT,
		JetStream: true,
		StoreDir:  tempDir(t),
		NoLog:     true,
		NoSigs:    true,
	}}
	for _, f := range configure {
		f(&n.options)
	}
	t.Cleanup(n.Stop)
	n.Start()
	n.options.Port = n.server.Addr().(*net.TCPAddr).Port
	return n
}

// Start runs the server again after [NATSServer.Stop], on the same port and
// store.
func (n *NATSServer) Start() {
	n.t.Helper()
	if n.server != nil {
		n.t.Fatal("nats-server is running already")
	}
	// The port may be in use for a moment by an outgoing connection.
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		options := n.options // the server writes to what it is given
		s, err := server.NewServer(&options)
		if err != nil {
			n.t.Fatal(err)
		}
		s.Start()
		if s.Running() && s.ReadyForConnections(5*time.Second) {
			n.server = s
			return
		}
		s.Shutdown()
		s.WaitForShutdown()
		if time.Now().After(deadline) {
			n.t.Fatalf("nats-server takes no connections on port %d", n.options.Port)
		}
	}
}

// Stop shuts the server down and waits for its end.
func (n *NATSServer) Stop() {
	if n.server == nil {
		return
	}
	n.server.Shutdown()
	n.server.WaitForShutdown()
	n.server = nil
}

// Reload changes what a running server can change, such as permissions.
func (n *NATSServer) Reload(change func(*server.Options)) {
	n.t.Helper()
	options := n.options
	change(&options)
	if err := n.server.ReloadOptions(&options); err != nil {
		n.t.Fatalf("reload nats-server: %v", err)
	}
}

// Server is the running server itself, nil while it is stopped.
func (n *NATSServer) Server() *server.Server { return n.server }

// URL is the address of the server, without credentials.
func (n *NATSServer) URL() string { return natsURL(n.options.Port) }

// Connect connects to the server; the connection is closed with the test. It
// reconnects for ever and without delay, unless the options say otherwise.
func (n *NATSServer) Connect(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, n.URL(), options)
}

func natsURL(port int) string { return fmt.Sprintf("nats://127.0.0.1:%d", port) }

func connect(t testing.TB, url string, options []nats.Option) *nats.Conn {
	t.Helper()
	options = append([]nats.Option{
		nats.Name(t.Name()), nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0),
	}, options...)
	nc, err := nats.Connect(url, options...)
	if err != nil {
		t.Fatalf("connect to %s: %v", url, err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// greets says whether a nats-server takes clients on the port: it speaks
// first, whatever credentials it wants later.
func greets(port int) error {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(time.Second)) // fails only on a closed connection; the read tells
	line, err := bufio.NewReader(c).ReadString(' ')
	if err == nil && line != "INFO " {
		err = errors.New("it does not greet like a nats-server")
	}
	return err
}
