package doctor

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/lapse-timers/lapse/timers/wire"
)

const accountInfoSubject = "$JS.API.INFO"

// usualSize is the size of a stream that is made where it must have one, as of the
// embedded server's.
const usualSize = 4 << 30

// checkAccount judges what the account may store: in the stream that is there, or
// whether one can be made. The service does without the right to ask.
func (e *exam) checkAccount(ctx context.Context, info *jetstream.StreamInfo) {
	const check = "jetstream-account"
	js, err := jetstream.New(e.nats.nc.Conn)
	if err != nil {
		e.unknown("nats", check, err.Error())
		return
	}
	ask, cancel := e.nats.asking(ctx)
	account, err := js.AccountInfo(ask)
	cancel()
	if err != nil {
		if denied := e.nats.refusal(); denied != "" {
			err = errors.New("refused: " + denied)
		}
		e.unknown("nats", check, fmt.Sprintf("the limits of the account are not told (%v)", err),
			fmt.Sprintf("# allow the user to publish %q", accountInfoSubject))
		return
	}
	replicas := e.cfg.StreamReplicas
	if info != nil {
		replicas = info.Config.Replicas
	}
	tier := account.Tier
	if t, ok := account.Tiers[fmt.Sprintf("R%d", replicas)]; ok {
		tier = t
	}
	used, most := tier.Store, tier.Limits.MaxStore
	if info != nil && info.Config.Storage == jetstream.MemoryStorage {
		used, most = tier.Memory, tier.Limits.MaxMemory
	}
	f := wire.Finding{Check: check, Part: "nats"}
	if info == nil {
		f.Found, f.Wanted, f.Remedy = e.whyNoStream(tier)
		f.Why = "Lapse cannot make its stream, and does not start"
	}
	if f.Found == "" && most > 0 && float64(used) > nearlyFull*float64(most) {
		f.Status, f.Found = wire.FindingWarn, fmt.Sprintf("the streams of the account hold %s of the %s that it may", size(int64(used)), size(most))
		f.Wanted = fmt.Sprintf("below %.0f %%", 100*nearlyFull)
		f.Why = "once it is full its streams refuse what comes: fired events are tried again until there is room"
		f.Remedy = lines("# consume or purge what the streams hold, or give the account more in nats-server.conf, then:", "nats-server --signal reload")
	}
	switch {
	case f.Found != "":
		e.found(f, nil)
	case most > 0:
		e.ok("nats", check, "%s of %s", size(int64(used)), size(most))
	default:
		e.ok("nats", check, "no limit of its storage")
	}
}

// whyNoStream says what of the account's limits keeps Lapse from making its stream.
func (e *exam) whyNoStream(tier jetstream.Tier) (found, wanted, remedy string) {
	limits, asked := tier.Limits, e.cfg.StreamMaxBytes
	fits := int64(usualSize)
	if limits.StoreMaxStreamBytes > 0 {
		fits = min(fits, limits.StoreMaxStreamBytes)
	}
	left := limits.MaxStore - int64(tier.ReservedStore)
	if limits.MaxStore > 0 {
		fits = min(fits, max(left, 0))
	}
	smaller := fmt.Sprintf("LAPSE_STREAM_MAX_BYTES=%d", fits)
	switch {
	case limits.MaxStreams > 0 && tier.Streams >= limits.MaxStreams:
		return fmt.Sprintf("the account has all of the %d streams that it may have", limits.MaxStreams), "room for one more",
			lines("# raise max_streams of the account in nats-server.conf, then:", "nats-server --signal reload", "# or have one of its streams hold "+e.prefix.Fired(">")+" too")
	case fits == 0:
		return fmt.Sprintf("all of the account's %s are reserved by other streams", size(limits.MaxStore)), "room for one more",
			lines("# raise max_file of the account in nats-server.conf, then:", "nats-server --signal reload")
	case limits.MaxBytesRequired && asked <= 0:
		return "the account takes no stream without a bound of its size", "LAPSE_STREAM_MAX_BYTES", smaller
	case asked > 0 && limits.StoreMaxStreamBytes > 0 && asked > limits.StoreMaxStreamBytes:
		return fmt.Sprintf("a stream of the account may have %s", size(limits.StoreMaxStreamBytes)), fmt.Sprintf("%s, by LAPSE_STREAM_MAX_BYTES", size(asked)), smaller
	case asked > 0 && limits.MaxStore > 0 && asked > left:
		return fmt.Sprintf("the account has %s left for streams", size(left)), fmt.Sprintf("%s, by LAPSE_STREAM_MAX_BYTES", size(asked)), smaller
	}
	return "", "", ""
}
