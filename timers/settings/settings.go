// Package settings is what an operator can set: the LAPSE_ variables of
// README.md, their defaults, and the rules they obey. serve and doctor
// go by the same ones. Reading the environment is main's.
package settings

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/metrics"
	"github.com/lapse-timers/lapse/timers/service"
	"github.com/lapse-timers/lapse/timers/wire"
)

// userSeed is the line of a credentials file that a user signs with.
var userSeed = regexp.MustCompile(`(?m)^\s*SU[A-Z2-7]{20}`)

// Embedded is the value of LAPSE_REDIS_URL and LAPSE_NATS_URL with which Lapse
// runs a server of its own.
const Embedded = "embedded"

// MinHTTPToken is the fewest characters of LAPSE_HTTP_TOKEN.
const MinHTTPToken = 16

// maxHTTPToken is the most characters of it: a longer one would not fit into the
// headers that the HTTP server reads.
const maxHTTPToken = 1024

// maxStreamName is the longest name of a stream that NATS takes, in bytes.
const maxStreamName = 255

// Settings is every setting there is. main reads it with envconfig; lapse help
// prints the table. The tags hold whole names: with a prefix of its own envconfig
// falls back to the name without it, and NATS_URL or PREFIX are somebody else's.
type Settings struct {
	RedisURL       string        `envconfig:"LAPSE_REDIS_URL" default:"embedded" desc:"redis://, rediss:// or unix:// URL, or embedded"`
	NATSURL        string        `envconfig:"LAPSE_NATS_URL" default:"embedded" desc:"nats:// or tls:// URL, several with commas, or embedded"`
	NATSCreds      string        `envconfig:"LAPSE_NATS_CREDS" desc:"NATS credentials file"`
	NATSListen     string        `envconfig:"LAPSE_NATS_LISTEN" default:"127.0.0.1:4222" desc:"where the embedded NATS server listens; [user:pass@|token@]host:port"`
	WebSocket      string        `envconfig:"LAPSE_NATS_WEBSOCKET_LISTEN" desc:"where the embedded NATS server listens for browsers too; [user:pass@|token@]host:port"`
	WSOrigins      []string      `envconfig:"LAPSE_NATS_WEBSOCKET_ORIGINS" desc:"web pages that may connect there, such as http://localhost:8000, several with commas; any, with a secret"`
	DataDir        string        `envconfig:"LAPSE_DATA_DIR" default:"./lapse-data" desc:"data of the embedded servers"`
	HTTPListen     string        `envconfig:"LAPSE_HTTP_LISTEN" default:"127.0.0.1:8420" desc:"the page, /healthz, /readyz and /metrics"`
	HTTPToken      string        `envconfig:"LAPSE_HTTP_TOKEN" desc:"secret, at least 16 characters, with which the page may change timers; without, it is read-only"`
	Prefix         string        `envconfig:"LAPSE_PREFIX" default:"timers" desc:"names the subjects, the keys, the stream and the service"`
	Delivery       string        `envconfig:"LAPSE_DELIVERY" default:"jetstream" desc:"jetstream (stored and acknowledged) or core"`
	Stream         string        `envconfig:"LAPSE_STREAM" desc:"stream to make when none covers the fired events; from the prefix"`
	StreamReplicas int           `envconfig:"LAPSE_STREAM_REPLICAS" default:"1" desc:"its replicas, 1 to 5"`
	StreamMaxAge   time.Duration `envconfig:"LAPSE_STREAM_MAX_AGE" default:"72h" desc:"how long it keeps fired events; 0 for ever"`
	StreamMaxBytes int64         `envconfig:"LAPSE_STREAM_MAX_BYTES" desc:"its size in bytes; unlimited, with the embedded server 4294967296"`
	StreamDups     time.Duration `envconfig:"LAPSE_STREAM_DUPLICATES" default:"2m" desc:"its duplicate window"`
	Partitions     int           `envconfig:"LAPSE_PARTITIONS" default:"1" desc:"partitions of the keys; fixed once there are data"`
	MinReplicas    int           `envconfig:"LAPSE_MIN_REPLICAS" default:"0" desc:"replicas of Redis that must have a set, cancel or retry before it is answered OK, 0 to 10"`
	Lease          time.Duration `envconfig:"LAPSE_LEASE" default:"30s" desc:"how long a claim holds; at least 1s"`
	Grace          time.Duration `envconfig:"LAPSE_GRACE" default:"200ms" desc:"how late the reconciler claims by itself; 10ms to 10s"`
	RetryMin       time.Duration `envconfig:"LAPSE_RETRY_MIN" default:"100ms" desc:"first back-off of a fire"`
	RetryMax       time.Duration `envconfig:"LAPSE_RETRY_MAX" default:"30s" desc:"longest back-off of a fire"`
	MaxAttempts    int           `envconfig:"LAPSE_MAX_ATTEMPTS" default:"0" desc:"attempts after which a timer is dead; 0 never gives up"`
	RequestTimeout time.Duration `envconfig:"LAPSE_REQUEST_TIMEOUT" default:"2s" desc:"requests that waited longer are not carried out"`
	NotifyConfig   string        `envconfig:"LAPSE_NOTIFY_CONFIG" default:"auto" desc:"auto adds missing notification flags to Redis; off does not"`
	ShutdownGrace  time.Duration `envconfig:"LAPSE_SHUTDOWN_GRACE" default:"10s" desc:"how long a stop may take"`
	MetricsTopics  string        `envconfig:"LAPSE_METRICS_TOPICS" default:"*" desc:"topics with a label of their own at /metrics, with commas; * for the first tokens, at most 32; or none"`
	Pprof          bool          `envconfig:"LAPSE_PPROF" default:"false" desc:"serves profiles at /debug/pprof/ of the HTTP address"`
	LogLevel       slog.Level    `envconfig:"LAPSE_LOG_LEVEL" default:"info" desc:"debug, info, warn or error"`
	LogFormat      string        `envconfig:"LAPSE_LOG_FORMAT" desc:"text or json; text on a terminal, else json"`
}

// Check says what is wrong with the settings: the first error, which names the
// setting, its value and what would be right. It fills in what follows from
// other settings (the name and the size of the stream).
func (c *Settings) Check() error {
	one := func(name, value string, allowed ...string) error {
		if slices.Contains(allowed, value) {
			return nil
		}
		return fmt.Errorf("LAPSE_%s=%q: want %s", name, value, strings.Join(allowed, " or "))
	}
	within := func(name string, d, low, high time.Duration) error {
		if d >= low && d <= high {
			return nil
		}
		return fmt.Errorf("LAPSE_%s=%s: want %s to %s", name, d, low, high)
	}
	const day = 24 * time.Hour
	errs := []error{
		one("DELIVERY", c.Delivery, "jetstream", "core"),
		one("NOTIFY_CONFIG", c.NotifyConfig, "auto", "off"),
		one("LOG_FORMAT", c.LogFormat, "", "text", "json"),
		within("LEASE", c.Lease, time.Second, day),
		within("GRACE", c.Grace, 10*time.Millisecond, 10*time.Second),
		within("RETRY_MIN", c.RetryMin, time.Millisecond, time.Hour),
		within("RETRY_MAX", c.RetryMax, c.RetryMin, day),
		within("REQUEST_TIMEOUT", c.RequestTimeout, 10*time.Millisecond, time.Hour),
		within("SHUTDOWN_GRACE", c.ShutdownGrace, 0, time.Hour),
		within("STREAM_MAX_AGE", c.StreamMaxAge, 0, 100*365*day),
		within("STREAM_DUPLICATES", c.StreamDups, 0, 100*365*day),
	}
	if err := wire.CheckPrefix(c.Prefix); err != nil {
		errs = append(errs, fmt.Errorf("LAPSE_PREFIX: %w", err))
	}
	if _, err := metrics.ParseTopics(c.MetricsTopics); err != nil {
		errs = append(errs, fmt.Errorf("LAPSE_METRICS_TOPICS=%+q: %w", c.MetricsTopics, err))
	}
	if n := utf8.RuneCountInString(c.HTTPToken); n > maxHTTPToken {
		errs = append(errs, fmt.Errorf("LAPSE_HTTP_TOKEN has %d characters: want at most %d, such as the output of: openssl rand -hex 16", n, maxHTTPToken))
	} else if c.HTTPToken != "" && n < MinHTTPToken {
		errs = append(errs, fmt.Errorf("LAPSE_HTTP_TOKEN has %d characters: want at least %d, such as the output of: openssl rand -hex 16", n, MinHTTPToken))
	} else if strings.ContainsFunc(c.HTTPToken, func(r rune) bool { return r <= ' ' || r > '~' }) {
		errs = append(errs, errors.New("LAPSE_HTTP_TOKEN holds a space or a character that is not ASCII, which no header carries: want letters, digits and punctuation"))
	}
	if c.WebSocket != "" && c.NATSURL != Embedded {
		errs = append(errs, errors.New("LAPSE_NATS_WEBSOCKET_LISTEN is for the embedded NATS server only: put a websocket block into the configuration of the nats-server that LAPSE_NATS_URL names (README.md has it), or leave it out"))
	}
	if c.Partitions < 1 || c.Partitions > timers.MaxPartitions {
		errs = append(errs, fmt.Errorf("LAPSE_PARTITIONS=%d: want 1 to %d", c.Partitions, timers.MaxPartitions))
	}
	if c.MinReplicas < 0 || c.MinReplicas > 10 {
		errs = append(errs, fmt.Errorf("LAPSE_MIN_REPLICAS=%d: want 0 to 10", c.MinReplicas))
	}
	if c.MaxAttempts < 0 || c.MaxAttempts > 1_000_000 {
		errs = append(errs, fmt.Errorf("LAPSE_MAX_ATTEMPTS=%d: want 1 to 1000000, or 0 to never give up", c.MaxAttempts))
	}
	if c.StreamReplicas < 1 || c.StreamReplicas > 5 {
		errs = append(errs, fmt.Errorf("LAPSE_STREAM_REPLICAS=%d: want 1 to 5", c.StreamReplicas))
	} else if c.StreamReplicas > 1 && c.NATSURL == Embedded {
		errs = append(errs, fmt.Errorf("LAPSE_STREAM_REPLICAS=%d: the embedded NATS server is one server and keeps 1; name a cluster in LAPSE_NATS_URL, or leave it out", c.StreamReplicas))
	}
	if c.Stream == "" {
		c.Stream = wire.Prefix(c.Prefix).DefaultStream()
	} else if strings.ContainsAny(c.Stream, ".*>/\\") || len(c.Stream) > maxStreamName || strings.ContainsFunc(c.Stream, func(r rune) bool { return r == ' ' || !unicode.IsPrint(r) }) {
		errs = append(errs, fmt.Errorf("LAPSE_STREAM=%+q: a stream's name has no spaces, dots, slashes, wildcards or control characters, and at most %d bytes", wire.Cut(c.Stream), maxStreamName))
	}
	switch {
	case c.StreamMaxBytes < 0:
		errs = append(errs, fmt.Errorf("LAPSE_STREAM_MAX_BYTES=%d: want a number of bytes, or leave it out", c.StreamMaxBytes))
	case c.StreamMaxBytes == 0 && c.NATSURL == Embedded:
		c.StreamMaxBytes = 4 << 30
	case c.StreamMaxBytes == 0:
		c.StreamMaxBytes = -1
	}
	if c.Delivery == "jetstream" && c.Lease+c.RetryMax >= c.StreamDups {
		errs = append(errs, fmt.Errorf("LAPSE_LEASE=%s and LAPSE_RETRY_MAX=%s together must be below LAPSE_STREAM_DUPLICATES=%s, or a retry could be stored twice", c.Lease, c.RetryMax, c.StreamDups))
	}
	if c.Delivery == "jetstream" && c.StreamMaxAge > 0 && c.StreamMaxAge < c.StreamDups {
		errs = append(errs, fmt.Errorf("LAPSE_STREAM_MAX_AGE=%s: NATS makes no stream whose events go before its duplicate window is over; want at least LAPSE_STREAM_DUPLICATES=%s, or 0 for ever", c.StreamMaxAge, c.StreamDups))
	}
	// An empty address would be a free port of every interface, an empty directory
	// the one that somebody happened to start it in.
	if c.HTTPListen == "" {
		errs = append(errs, errors.New(`LAPSE_HTTP_LISTEN="": want host:port, such as 127.0.0.1:8420, or leave it out`))
	}
	if c.DataDir == "" {
		errs = append(errs, errors.New(`LAPSE_DATA_DIR="": want a directory, such as ./lapse-data, or leave it out`))
	}
	_, redisSet := os.LookupEnv("LAPSE_REDIS_URL")
	_, natsSet := os.LookupEnv("LAPSE_NATS_URL")
	if redisSet != natsSet {
		have, want := "LAPSE_REDIS_URL", "LAPSE_NATS_URL"
		if natsSet {
			have, want = want, have
		}
		errs = append(errs, fmt.Errorf("%s is set and %s is not; set both (embedded is a value)", have, want))
	}
	// What is wrong with an address must not be waited for.
	if c.RedisURL != Embedded {
		if _, err := timers.ParseRedisURL(c.RedisURL); err != nil {
			errs = append(errs, fmt.Errorf("LAPSE_REDIS_URL: %w", err))
		}
	}
	if c.NATSURL != Embedded {
		if err := service.CheckURLs(c.NATSURL); err != nil {
			errs = append(errs, fmt.Errorf("LAPSE_NATS_URL: %w", err))
		}
	}
	if c.NATSCreds != "" {
		if f, err := os.Open(c.NATSCreds); err != nil {
			errs = append(errs, fmt.Errorf("LAPSE_NATS_CREDS: %w; want the path of a credentials file", err))
		} else {
			if info, err := f.Stat(); err == nil && info.IsDir() {
				errs = append(errs, fmt.Errorf("LAPSE_NATS_CREDS=%+q is a directory; want the path of a credentials file", c.NATSCreds))
			} else if text, err := io.ReadAll(io.LimitReader(f, 1<<20)); err == nil && !userSeed.Match(text) {
				// Connecting would be tried again for ever.
				errs = append(errs, fmt.Errorf("LAPSE_NATS_CREDS=%+q holds no seed of a user; want a credentials file, as nsc generate creds writes it", c.NATSCreds))
			}
			f.Close() //nolint:errcheck // only ever opened
		}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Want is what a setting of the Go type takes, for an error that a value is
// none of it.
func Want(goType string) string {
	switch goType {
	case "time.Duration":
		return "duration such as 30s or 200ms"
	case "slog.Level":
		return "level: debug, info, warn or error"
	case "int", "int64":
		return "whole number"
	case "bool":
		return "switch: true or false"
	}
	return goType
}
