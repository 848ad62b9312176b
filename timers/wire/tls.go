package wire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
)

// TLSRemedy is what mends that TLS with a server, of Redis or NATS, did not come about, "" when
// err is something else.
func TLSRemedy(err error) string {
	var refused *tls.CertificateVerificationError
	switch {
	case errors.As(err, &refused):
		if errors.As(refused.Err, new(x509.UnknownAuthorityError)) {
			return "SSL_CERT_FILE=ca.pem, the file of the CA that signed the server's certificate"
		}
		return "a name of the server that stands in its certificate, and a certificate that is valid now"
	case err != nil && strings.Contains(err.Error(), "certificate required"): // an alert of the server, without a type
		return "a server that asks for no client certificate: tls-auth-clients no in redis.conf, no verify in nats-server's tls block"
	}
	return ""
}
