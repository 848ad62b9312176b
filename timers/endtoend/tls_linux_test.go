package endtoend

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers/client"
	"github.com/lapse-timers/lapse/timers/doctor"
	"github.com/lapse-timers/lapse/timers/timerstest"
	"github.com/lapse-timers/lapse/timers/wire"
)

// Redis and NATS with TLS, as the README has it: a CA of one's own is trusted
// by SSL_CERT_FILE, and who does not trust it is told that name.
func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key := selfSigned(t)
	addr := freeAddr(t)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	timerstest.Redis(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	ns := timerstest.NATS(t, func(o *server.Options) {
		o.TLS, o.TLSConfig, o.TLSTimeout = true, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, 10
	})
	redisURL, natsURL := "rediss://"+addr, strings.Replace(ns.URL(), "nats://", "tls://", 1)

	nc, err := nats.Connect(natsURL, nats.RootCAs(cert))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	c := newClient(t, nc)
	fired := make(chan client.Fired, 1)
	_, err = c.Handle(t.Context(), "tls", func(_ context.Context, f client.Fired) { fired <- f })
	require.NoError(t, err)
	timerstest.LapseOn(t, redisURL, natsURL, "SSL_CERT_FILE="+cert)
	_, err = c.Set(t.Context(), "tls", []byte("x"), client.In(100*time.Millisecond))
	require.NoError(t, err)
	select {
	case f := <-fired:
		require.Equal(t, "event", f.Source, "the subscription works too")
	case <-time.After(soon):
		t.Fatal("nothing fired")
	}

	r := doctor.Run(t.Context(), deployed(redisURL, natsURL))
	for _, check := range []string{"redis-reachable", "nats-reachable"} {
		f, _ := r.Find(check)
		require.Equal(t, wire.FindingFail, f.Status)
		require.Contains(t, f.Found, "certificate")
		require.Contains(t, f.Remedy, "SSL_CERT_FILE=", check)
	}
	out, err := exec.Command(timerstest.LapseBinary(t), "status", "--server", natsURL).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "SSL_CERT_FILE=")
}

// selfSigned is the files of a certificate of 127.0.0.1 that is its own CA, and
// of its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	return write("cert.pem", "CERTIFICATE", signed), write("key.pem", "PRIVATE KEY", secret)
}
