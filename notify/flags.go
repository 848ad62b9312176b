package notify

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lapse-timers/lapse/timers"
)

// setting is the directive of redis.conf that makes Redis announce what
// happens to its keys. Its value is a set of letters in any order
// (https://redis.io/docs/latest/develop/pubsub/keyspace-notifications/).
const setting = "notify-keyspace-events"

// flags is what a look at the setting found.
type flags struct {
	state   flagState
	missing string // the letters, when state is flagsMissing
	added   string // the letters that the look itself added
	because string // why Redis does not tell, when state is flagsUnknown
	why     string // for people: what is wrong and what mends it; "" when right
}

type flagState int

const (
	flagsUnseen  flagState = iota // no look has succeeded yet
	flagsRight                    // events are announced
	flagsMissing                  // they are not
	flagsUnknown                  // Redis does not tell
)

// errReplica ends a session with a server that announces nothing: the next
// one asks for the address anew and finds the master when a name leads there.
var errReplica = errors.New("this Redis server is a replica, which announces no expired events; give Lapse the address of the master")

// look reads the setting and, when it may, adds what is missing. An error
// says that Redis did not answer, answered that it cannot now, or is a
// replica: the session should end. A refusal is no error but a finding.
func look(ctx context.Context, c *redis.Client, configure bool) (flags, error) {
	if err := checkMaster(ctx, c); err != nil {
		return flags{}, err
	}
	have, f, err := readFlags(ctx, c)
	if err != nil || f.state != flagsUnseen {
		return f, err
	}
	missing := timers.MissingFlags(have)
	if missing == "" {
		return flags{state: flagsRight}, nil
	}
	want := timers.WantedFlags(have)
	if !configure {
		return flagsLack(have, "LAPSE_NOTIFY_CONFIG=off keeps Lapse from adding what is missing"), nil
	}
	if err := c.ConfigSet(ctx, setting, want).Err(); err != nil {
		if !refused(err) {
			return flags{}, fmt.Errorf("set %s: %w", setting, err)
		}
		return flagsLack(have, fmt.Sprintf("CONFIG SET was refused (%v)", err)), nil
	}
	// Some proxies accept CONFIG SET and do nothing.
	have, f, err = readFlags(ctx, c)
	switch {
	case err != nil || f.state != flagsUnseen:
		return f, err
	case timers.MissingFlags(have) != "":
		return flagsLack(have, "CONFIG SET was accepted without effect"), nil
	}
	return flags{state: flagsRight, added: missing}, nil
}

// readFlags returns the value of the setting, or, when Redis does not tell
// it, what to report instead.
func readFlags(ctx context.Context, c *redis.Client) (have string, f flags, err error) {
	got, err := c.ConfigGet(ctx, setting).Result()
	if err != nil {
		if !refused(err) {
			return "", flags{}, fmt.Errorf("read %s: %w", setting, err)
		}
		return "", flagsHidden(fmt.Sprintf("CONFIG GET was refused (%v)", err)), nil
	}
	have, ok := got[setting]
	if !ok {
		return "", flagsHidden("CONFIG GET knows no such setting"), nil
	}
	return have, flags{}, nil
}

func flagsLack(have, because string) flags {
	missing := timers.MissingFlags(have)
	named := missing + " is"
	if len(missing) > 1 {
		named = "E and x are"
	}
	return flags{
		state:   flagsMissing,
		missing: missing,
		why: fmt.Sprintf("%s is %q: %s missing, so Redis announces no expired keys; %s; put this line into redis.conf: %s %s",
			setting, have, named, because, setting, timers.WantedFlags(have)),
	}
}

func flagsHidden(because string) flags {
	return flags{
		state:   flagsUnknown,
		because: because,
		why: fmt.Sprintf("%s is unknown: %s; see to it that redis.conf, or the provider's parameter of that name, has this line: %s Ex",
			setting, because, setting),
	}
}

// checkMaster returns errReplica when the server says that it is a replica.
// Where it does not say (a proxy, an ACL), it is taken for a master.
func checkMaster(ctx context.Context, c *redis.Client) error {
	reply, err := c.Do(ctx, "hello").Result()
	if err != nil {
		if refused(err) {
			return nil
		}
		return fmt.Errorf("ask for the role: %w", err)
	}
	var role any
	switch reply := reply.(type) {
	case map[any]any: // RESP3
		role = reply["role"]
	case []any: // RESP2: names and values in turn
		for i := 0; i+1 < len(reply); i += 2 {
			if reply[i] == "role" {
				role = reply[i+1]
			}
		}
	}
	if role == "replica" || role == "slave" {
		return errReplica
	}
	return nil
}

// refused says whether err is Redis's own answer that the command is not
// allowed, not known or not supported here: asking again changes nothing. The
// words of managed services differ, so it is told by what it is not.
func refused(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) || errors.Is(err, redis.Nil) {
		return false
	}
	// Some proxies put ERR in front of the word.
	word, _, _ := strings.Cut(strings.TrimPrefix(reply.Error(), "ERR "), " ")
	switch word {
	case "LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "NOAUTH", "WRONGPASS", "UNBLOCKED":
		return false
	}
	return true
}
