package service

import (
	"context"
	"errors"
	"fmt"

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
	return eachInstance(ctx, nc, prefix, func(info micro.Info) error {
		if other := info.Metadata[wire.MetaDeployment]; other != deployment {
			return fmt.Errorf("%w: instance %s (version %s) answers for prefix %s with deployment %s, the data in this Redis is deployment %s; use that deployment's Redis, another LAPSE_PREFIX, or another NATS",
				ErrOtherDeployment, info.Metadata[wire.MetaInstance], info.Version, prefix, other, deployment)
		}
		return nil
	})
}
