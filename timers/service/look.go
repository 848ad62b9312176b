package service

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/lapse-timers/lapse/timers/wire"
)

// StreamsOver are the streams that hold any subject which the given one matches.
// Errors match [ErrNoJetStream] and [ErrStream] where waiting does not help.
func StreamsOver(ctx context.Context, nc *nats.Conn, subject string) ([]*jetstream.StreamInfo, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	list := js.ListStreams(ctx, jetstream.WithStreamListSubject(subject))
	var found []*jetstream.StreamInfo
	for info := range list.Info() {
		found = append(found, info)
	}
	if err := list.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		return nil, jetStreamError(nc, err)
	}
	return found, nil
}

// RequestSubjects are the subjects on which requests come.
func RequestSubjects(prefix wire.Prefix) []string {
	var all []string
	for _, verb := range []func(string) string{prefix.Set, prefix.Get, prefix.Cancel, prefix.Retry, prefix.List} {
		all = append(all, verb(""), verb(">"))
	}
	return append(all, prefix.Status())
}

// Covers says whether one of the subjects matches all that wanted matches.
func Covers(subjects []string, wanted string) bool { return covers(subjects, wanted) }

// DeniedRight reads from an asynchronous error which right NATS does not give:
// "publish" or "subscription", and for which subject.
func DeniedRight(err error) (right, subject string, ok bool) { return deniedRight(err) }

// Instances asks who serves the prefix. It waits as long as answers come, at
// most two seconds; whoever answers later is not among them.
func Instances(ctx context.Context, nc *nats.Conn, prefix wire.Prefix) ([]micro.Info, error) {
	var found []micro.Info
	err := eachInstance(ctx, nc, prefix, func(info micro.Info) error {
		found = append(found, info)
		return nil
	})
	return found, err
}

// eachInstance calls f with each instance that answers, until f has an error.
func eachInstance(ctx context.Context, nc *nats.Conn, prefix wire.Prefix, f func(micro.Info) error) error {
	subject, err := micro.ControlSubject(micro.InfoVerb, prefix.ServiceName(), "")
	if err != nil {
		return err
	}
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	defer sub.Unsubscribe() //nolint:errcheck // it only reads
	if err := nc.PublishRequest(subject, inbox, nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for {
		// The first answer tells whether there is anybody; the next ones follow closely.
		wait, stop := context.WithTimeout(ctx, 400*time.Millisecond)
		m, err := sub.NextMsgWithContext(wait)
		stop()
		switch {
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrNoResponders):
			return nil
		case err != nil:
			return err
		}
		var info micro.Info
		if json.Unmarshal(m.Data, &info) != nil || info.Metadata[wire.MetaPrefix] != string(prefix) {
			continue
		}
		if err := f(info); err != nil {
			return err
		}
	}
}
