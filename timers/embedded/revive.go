package embedded

import (
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// isBroken recognises what the server logs when it could not write a file of a
// stream or a consumer. From then on it stores nothing more there and answers no
// publish, also when there is room again: only its restart ends that.
func isBroken(text string) bool {
	return strings.Contains(strings.ToLower(text), "critical write error")
}

const (
	reviveEvery = time.Second
	// reviveRoom is how much the disk must take before the server is started again:
	// what it would do first is to write.
	reviveRoom = 1 << 20
)

// revive starts the server again after a write error, once the disk takes data,
// until Stop. What was acknowledged is on the disk. To its clients it is a server
// that restarts: they come back by themselves.
func (n *NATS) revive(options *server.Options, log *natsLog, logger *slog.Logger) {
	defer close(n.revived)
	for {
		select {
		case <-n.stopping:
			return
		case <-log.broken:
		}
		logger.Error("the embedded NATS server could not write and stores nothing more; it is started again once the disk takes data", "store", options.StoreDir)
		for again := true; again; {
			select {
			case <-n.stopping:
				return
			case <-time.After(reviveEvery):
			}
			if hasRoom(options.StoreDir) != nil {
				continue
			}
			old := n.server.Load()
			old.Shutdown()
			old.WaitForShutdown()
			select {
			case <-log.broken: // of the one that has ended
			default:
			}
			s, err := launch(options, log)
			if again = err != nil; again {
				logger.Error("the embedded NATS server does not start, trying again", "error", err)
				continue
			}
			n.server.Store(s)
		}
		logger.Info("the embedded NATS server stores again")
	}
}

// hasRoom says whether the disk takes some more data.
func hasRoom(dir string) error {
	f, err := os.CreateTemp(dir, "room-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // the next look has another name
	defer f.Close()           //nolint:errcheck // it was synced, or is of no use
	if _, err := f.Write(make([]byte, reviveRoom)); err != nil {
		return err
	}
	return f.Sync()
}
