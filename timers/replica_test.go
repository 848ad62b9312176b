package timers_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/timerstest"
)

// What was answered OK with replicas asked for is still there after a failover,
// and where no replica has it, the answer is not OK.
func TestSetAwaitsReplicas(t *testing.T) {
	t.Parallel()
	master := timerstest.RedisTCP(t)
	r := onRedis(t, master)
	require.NoError(t, r.rdb.Do(t.Context(), "ACL", "SETUSER", "short", "reset", "on", ">pw", "~*", "+@all", "-wait").Err())
	opt, err := timers.ParseRedisURL("redis://short:pw@" + master.Addr())
	require.NoError(t, err)
	short := redis.NewClient(opt)
	defer short.Close()
	without := timers.NewStore(short, r.keys)
	require.NoError(t, without.Open(t.Context()))
	without.AwaitReplicas(1, time.Second)
	require.ErrorIs(t, without.Open(t.Context()), timers.ErrRedisAuth)

	r.store.AwaitReplicas(1, 200*time.Millisecond)
	set := func(id string) error {
		_, err := r.store.Set(t.Context(), 0, []timers.SetItem{{Ref: ref(id), In: time.Hour, Schedule: "@in 1h", Payload: []byte("x")}})
		return err
	}
	err = set("alone")
	require.ErrorIs(t, err, timers.ErrReplicas)
	require.ErrorIs(t, err, timers.ErrUnconfirmed)
	require.ErrorContains(t, err, "0 of 1")
	require.NotNil(t, r.get("alone"), "it is there all the same")
	res, _, err := r.store.Cancel(t.Context(), 0, refs("alone", "nobody"))
	require.ErrorIs(t, err, timers.ErrReplicas)
	require.Equal(t, timers.Cancelled, res[0].Outcome)
	require.Equal(t, timers.CancelNotFound, res[1].Outcome, "what was not carried out is told apart")
	require.Nil(t, r.get("alone"))
	require.NoError(t, r.rdb.ScriptFlush(t.Context()).Err())
	r.store.AwaitReplicas(1, time.Second)
	soon, cancel := context.WithTimeout(t.Context(), 1800*time.Millisecond)
	defer cancel()
	_, _, err = r.store.Cancel(soon, 0, refs("nobody"))
	require.ErrorIs(t, err, timers.ErrReplicas, "a script whose text is sent first does not wait twice")

	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(t, err)
	replica := timerstest.RedisTCP(t, "--replicaof", host+" "+port)
	timerstest.Eventually(t, 20*time.Second, "the replica has caught up", func() bool {
		return r.rdb.Do(t.Context(), "WAIT", 1, 100).Val() == int64(1)
	})
	require.NoError(t, r.rdb.ScriptFlush(t.Context()).Err()) // its text goes the same way
	r.store.AwaitReplicas(1, 20*time.Second)
	require.NoError(t, set("kept"))
	r.store.AwaitReplicas(1, 200*time.Millisecond)
	s, err := timers.Inspect(t.Context(), r.rdb)
	require.NoError(t, err)
	require.Equal(t, 1, s.Replicas)

	replica.Pause() // it is connected, and takes nothing
	require.ErrorIs(t, set("doubtful"), timers.ErrReplicas)
	master.Kill()
	replica.Resume()
	require.NoError(t, replica.Client().ReplicaOf(t.Context(), "NO", "ONE").Err())
	after := onRedis(t, replica)
	require.Equal(t, "x", string(after.get("kept").Payload))
	require.Nil(t, after.get("alone"))
}
