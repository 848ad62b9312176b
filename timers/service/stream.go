package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lapse-timers/lapse/timers/wire"
)

// StreamConfig is the stream as Lapse makes it when there is none.
type StreamConfig struct {
	Name       string
	Replicas   int
	MaxAge     time.Duration
	MaxBytes   int64 // -1: no limit
	Duplicates time.Duration
}

// ErrStream is a stream that Lapse must not work with; the message names it
// and the remedy. Waiting does not help.
var ErrStream = errors.New("a stream is in the way")

// ErrNoJetStream says that the account or server has no JetStream. Waiting
// does not help.
var ErrNoJetStream = errors.New("no JetStream; start nats-server with -js, enable it for the account, or set LAPSE_DELIVERY=core")

// stream is what delivery needs to know of the stream that covers the fired
// subjects.
type stream struct {
	name       string
	maxMsgSize int // bytes with headers, 0 for no limit of its own
	duplicates time.Duration
	made       bool
	mute       bool   // it does not acknowledge; beside an error
	dead       bool   // it covers the announcements of dead timers too
	ack        []byte // how the server begins a plain acknowledgement of it
}

func newStream(name string, maxMsgSize int32, duplicates time.Duration, made bool) stream {
	return stream{name: name, maxMsgSize: int(max(maxMsgSize, 0)), duplicates: duplicates, made: made,
		ack: fmt.Appendf(nil, "{\"stream\":%q,\"seq\":", name)}
}

// CheckRequests refuses streams that would answer requests in Lapse's place:
// a stream's PubAck reaches the requester before Lapse does.
func CheckRequests(ctx context.Context, nc *nats.Conn, prefix wire.Prefix) error {
	for _, subject := range RequestSubjects(prefix) {
		found, err := StreamsOver(ctx, nc, subject)
		if err != nil {
			return err
		}
		for _, info := range found {
			if !info.Config.NoAck {
				return fmt.Errorf("%w: stream %s holds %s and would answer the requests on %s; narrow its subjects (fired events need only %s), or choose another LAPSE_PREFIX",
					ErrStream, info.Config.Name, strings.Join(info.Config.Subjects, ", "), subject, prefix.Fired(">"))
			}
		}
	}
	return nil
}

// findStream finds the stream that covers all fired subjects, and makes it
// when no stream has any of them. It never alters one.
func findStream(ctx context.Context, nc *nats.Conn, prefix wire.Prefix, cfg StreamConfig) (stream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return stream{}, err
	}
	fired := prefix.Fired(">")
	found, err := StreamsOver(ctx, nc, fired)
	if err != nil {
		return stream{}, err
	}
	for _, info := range found {
		c := info.Config
		refuse := func(why string) (stream, error) {
			return stream{}, fmt.Errorf("%w: stream %s (%s) %s; let one stream that acknowledges cover the whole of %s, or delete it and let Lapse make %s",
				ErrStream, c.Name, strings.Join(c.Subjects, ", "), why, fired, cfg.Name)
		}
		switch {
		case !covers(c.Subjects, fired):
			return refuse("covers only a part of " + fired)
		case c.NoAck:
			s, err := refuse("does not acknowledge (no_ack)")
			s.mute = true
			return s, err
		case c.Sealed:
			return refuse("is sealed")
		case c.Mirror != nil:
			return refuse("is a mirror")
		}
		s := newStream(c.Name, c.MaxMsgSize, c.Duplicates, false)
		s.dead = covers(c.Subjects, prefix.Dead(">"))
		return s, nil
	}

	made := jetstream.StreamConfig{
		Name:        cfg.Name,
		Description: "fired timers of Lapse",
		Subjects:    []string{fired, prefix.Dead(">")},
		Storage:     jetstream.FileStorage,
		Replicas:    cfg.Replicas,
		MaxAge:      cfg.MaxAge,
		MaxBytes:    cfg.MaxBytes,
		Duplicates:  cfg.Duplicates,
		Discard:     jetstream.DiscardOld,
	}
	s, err := js.CreateStream(ctx, made)
	switch {
	case err == nil:
		made := newStream(cfg.Name, -1, s.CachedInfo().Config.Duplicates, true)
		made.dead = true
		return made, nil
	case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse):
		// Another instance was first, which the next look shows; or it is a
		// stream of that name for something else.
		if info, infoErr := js.Stream(ctx, cfg.Name); infoErr == nil && !covers(info.CachedInfo().Config.Subjects, fired) {
			c := info.CachedInfo().Config
			is := "holds " + strings.Join(c.Subjects, ", ")
			switch {
			case c.Mirror != nil:
				is = "is a mirror"
			case len(c.Subjects) == 0:
				is = "has no subjects"
			}
			return stream{}, fmt.Errorf("%w: stream %s exists and %s, so it does not take %s; choose another name with LAPSE_STREAM",
				ErrStream, c.Name, is, fired)
		}
		return stream{}, fmt.Errorf("making stream %s: %w", cfg.Name, err)
	default:
		return stream{}, fmt.Errorf("making stream %s: %w", cfg.Name, jetStreamError(nc, err))
	}
}

// jetStreamError tells what waiting does not mend from what it may.
func jetStreamError(nc *nats.Conn, err error) error {
	var api *jetstream.APIError
	if errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
		return ErrNoJetStream
	}
	// A server by itself that has it off, and nobody beyond it who answers. In a
	// cluster others may have it, and are still to come.
	if on, _ := nc.ConnectedServerJetStream(); !on && errors.Is(err, nats.ErrNoResponders) && nc.IsConnected() && nc.ConnectedClusterName() == "" {
		return ErrNoJetStream
	}
	if errors.As(err, &api) && api.Code == 400 {
		return fmt.Errorf("%w: JetStream says %s (%d)", ErrStream, api.Description, api.ErrorCode)
	}
	return err
}

// covers says whether one of the subjects matches all that wanted matches;
// wanted ends in ">".
func covers(subjects []string, wanted string) bool {
	for _, s := range subjects {
		if subsumes(strings.Split(s, "."), strings.Split(wanted, ".")) {
			return true
		}
	}
	return false
}

func subsumes(wide, narrow []string) bool {
	for i, w := range wide {
		switch {
		case w == ">":
			return i < len(narrow)
		case i >= len(narrow):
			return false
		case narrow[i] == ">":
			return false
		case w != "*" && w != narrow[i]:
			return false
		}
	}
	return len(wide) == len(narrow)
}
