package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// measureMemory is the part memory: what Redis uses for each timer that waits.
func measureMemory(ctx context.Context, r *rig, o Options, out *Result) error {
	d := r.contestant.(*deployment) // Check and about let no other come here
	before, err := usedMemory(ctx, d.redis)
	if err != nil {
		return err
	}
	if err := r.fill(ctx, o.Pending); err != nil {
		return err
	}
	after, err := usedMemory(ctx, d.redis)
	if err != nil {
		return err
	}
	m := Memory{PerTimer: round1((after - before) / float64(r.pending))}
	if p := d.procs["redis"]; p != nil {
		m.RedisRSS, _ = memory(p.pid())
	}
	for _, p := range d.instances {
		now, _ := memory(p.pid())
		m.ServiceRSS += now
	}
	out.Pending, out.Memory = r.pending, &m
	return nil
}

func usedMemory(ctx context.Context, rdb *redis.Client) (float64, error) {
	info, err := rdb.Info(ctx, "memory").Result()
	if err != nil {
		return 0, fmt.Errorf("ask Redis for its memory: %w", err)
	}
	// Buffers of clients and of the file come and go with the load.
	return infoValue(info, "used_memory") - infoValue(info, "mem_clients_normal") - infoValue(info, "mem_aof_buffer"), nil
}

// measureIdle is the part idle: what it costs to have timers wait that are not
// due.
func measureIdle(ctx context.Context, r *rig, o Options, out *Result) error {
	d := r.contestant.(*deployment) // Check and about let no other come here
	if err := r.fill(ctx, o.Pending); err != nil {
		return err
	}
	if err := sleep(ctx, 2*time.Second); err != nil { // for what the sets left to do in the service
		return err
	}
	m, err := startMonitor(ctx, d.redis.Options())
	if err != nil {
		out.Notes = append(out.Notes, fmt.Sprintf("commands_per_s holds those inside scripts too: Redis let nobody monitor (%v)", err))
	}
	began := time.Now()
	cpu := d.cpu()
	before, err := calls(ctx, d.redis)
	if err == nil {
		err = sleep(ctx, o.Duration)
	}
	after, err2 := calls(ctx, d.redis)
	elapsed := time.Since(began).Seconds()
	used := d.cpu()
	sent, inside := m.end()
	if err = errors.Join(err, err2); err != nil {
		return fmt.Errorf("watch Redis: %w", err)
	}
	i := Idle{ByName: map[string]float64{}, CPU: map[string]float64{}}
	all := 0.0
	for name, n := range after {
		if n -= before[name]; n > 0 && name != "info" && name != "monitor" {
			i.ByName[name] = round2(n / elapsed)
			all += n
		}
	}
	i.Commands = round2(all / elapsed)
	if m != nil {
		i.Commands, i.Inside = round2(float64(sent)/elapsed), round2(float64(inside)/elapsed)
	}
	for name, t := range used {
		i.CPU[name] = round2((t - cpu[name]).Seconds() / elapsed * 100)
	}
	out.Pending, out.Duration, out.Idle = r.pending, o.Duration.Seconds(), &i
	return nil
}

func round2(v float64) float64 { return math.Round(v*100) / 100 }

var commandCalls = regexp.MustCompile(`(?m)^cmdstat_([^:]+):calls=(\d+)`)

// calls is how often each command was carried out since Redis started.
func calls(ctx context.Context, rdb *redis.Client) (map[string]float64, error) {
	info, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for _, m := range commandCalls.FindAllStringSubmatch(info, -1) {
		n, _ := strconv.ParseFloat(m[2], 64) // digits
		out[m[1]] += n
	}
	return out, nil
}

// monitor counts the commands that Redis carries out, because only MONITOR
// tells those that were sent from those inside scripts.
type monitor struct {
	conn         net.Conn
	wg           sync.WaitGroup
	sent, inside atomic.Int64
}

func startMonitor(ctx context.Context, o *redis.Options) (*monitor, error) {
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if err != nil {
		return nil, err
	}
	greet := ""
	if o.Password != "" {
		args := []string{"AUTH"}
		if o.Username != "" {
			args = append(args, o.Username)
		}
		greet = encode(append(args, o.Password)...)
	}
	lines := bufio.NewReader(conn)
	for _, command := range []string{greet, encode("MONITOR")} {
		if command == "" {
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(answerWithin)) // the read tells
		if _, err = conn.Write([]byte(command)); err == nil {
			var line string
			if line, err = lines.ReadString('\n'); err == nil && !strings.HasPrefix(line, "+OK") {
				err = errors.New(strings.TrimSpace(strings.TrimPrefix(line, "-")))
			}
		}
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	_ = conn.SetDeadline(time.Time{}) // likewise
	m := &monitor{conn: conn}
	m.wg.Go(func() {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return // closed
			}
			switch {
			case strings.Contains(line, " lua] "):
				m.inside.Add(1)
			case !strings.Contains(strings.ToLower(line), `] "info"`):
				m.sent.Add(1)
			}
		}
	})
	return m, nil
}

// end stops counting. It works on nil, when there is none.
func (m *monitor) end() (sent, inside int64) {
	if m == nil {
		return 0, 0
	}
	_ = m.conn.Close() // it was only read
	m.wg.Wait()
	return m.sent.Load(), m.inside.Load()
}

// encode writes a command in Redis's protocol.
func encode(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.String()
}
