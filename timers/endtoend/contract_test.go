package endtoend

import (
	"github.com/nats-io/nats.go"
)

// request is a set as any NATS client would send it.
func request(subject, id, schedule string) *nats.Msg {
	m := nats.NewMsg(subject)
	if id != "" {
		m.Header.Set("Timer-Id", id)
	}
	if schedule != "" {
		m.Header.Set("Timer-Schedule", schedule)
	}
	m.Data = []byte("payload of " + id)
	return m
}
