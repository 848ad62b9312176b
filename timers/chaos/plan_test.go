package chaos

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func everyLane(lane) bool { return true }

func TestASeedReplaysTheSequence(t *testing.T) {
	sequence := func(seed uint64) (out []string) {
		p := newPlan(seed, everyLane, time.Second, nil)
		for range 200 {
			out = append(out, p.next().String())
		}
		return out
	}
	require.Equal(t, sequence(7), sequence(7))
	require.NotEqual(t, sequence(7), sequence(8))
}

func TestNoKindIsLeftOut(t *testing.T) {
	p := newPlan(1, everyLane, time.Second, nil)
	count := map[string]int{}
	for range 20 * len(Kinds) {
		s := p.next()
		require.Positive(t, s.pause)
		for _, k := range s.kinds {
			count[k.Name]++
		}
		require.GreaterOrEqual(t, s.hold, s.kinds[0].min)
		require.LessOrEqual(t, s.hold, s.kinds[0].max)
	}
	for _, k := range Kinds {
		require.GreaterOrEqual(t, count[k.Name], 20, k.Name)
	}
}

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c) //nolint:errcheck // it ends with the connection
			}()
		}
	}()
	return l.Addr().String()
}

func TestProxy(t *testing.T) {
	p := NewProxy(t, echo(t))
	dial := func() net.Conn {
		c, err := net.Dial("tcp", p.Addr())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	answers := func(c net.Conn, within time.Duration) bool {
		_, err := c.Write([]byte("x"))
		if err != nil {
			return false
		}
		require.NoError(t, c.SetReadDeadline(time.Now().Add(within)))
		_, err = c.Read(make([]byte, 1))
		return err == nil
	}
	c := dial()
	require.True(t, answers(c, time.Minute))

	p.Stall()
	require.False(t, answers(c, 50*time.Millisecond))
	require.NoError(t, p.Pass())
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err := c.Read(make([]byte, 1))
	require.NoError(t, err, "what was stalled arrives")

	p.Slow(20 * time.Millisecond)
	began := time.Now()
	require.True(t, answers(c, time.Minute))
	require.GreaterOrEqual(t, time.Since(began), 40*time.Millisecond, "both directions are slow")
	require.NoError(t, p.Pass())

	p.Cut()
	require.False(t, answers(c, time.Minute))
	require.True(t, answers(dial(), time.Minute), "new connections are taken")

	c = dial()
	require.True(t, answers(c, time.Minute))
	p.Refuse()
	require.False(t, answers(c, time.Minute))
	_, err = net.Dial("tcp", p.Addr())
	require.Error(t, err)
	require.NoError(t, p.Pass())
	require.True(t, answers(dial(), time.Minute))
}
