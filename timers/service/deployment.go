package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/lapse-timers/lapse/timers/wire"
)

// ErrOtherDeployment is another deployment that serves the same prefix on the
// same NATS: each would take some of the other's requests. Waiting does not
// help.
var ErrOtherDeployment = errors.New("another deployment serves the same prefix")

// CheckDeployment asks who serves the prefix and refuses when one of them has
// other data. It waits as long as answers come, at most two seconds.
func CheckDeployment(ctx context.Context, nc *nats.Conn, prefix wire.Prefix, deployment string) error {
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
		if other := info.Metadata[wire.MetaDeployment]; other != deployment {
			return fmt.Errorf("%w: instance %s (version %s) answers for prefix %s with deployment %s, the data in this Redis is deployment %s; use that deployment's Redis, another LAPSE_PREFIX, or another NATS",
				ErrOtherDeployment, info.Metadata[wire.MetaInstance], info.Version, prefix, other, deployment)
		}
	}
}
