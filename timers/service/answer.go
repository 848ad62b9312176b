package service

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nuid"

	"github.com/lapse-timers/lapse/timers"
	"github.com/lapse-timers/lapse/timers/fault"
	"github.com/lapse-timers/lapse/timers/wire"
)

// newID makes the id of a timer that came without one.
func newID() string { return nuid.Next() }

// invalid puts a broken rule of the vocabulary into the wire's words.
func invalid(err error) *wire.Error {
	word := wire.InvalidRequest
	var inv *timers.Invalid
	if errors.As(err, &inv) {
		switch inv.What {
		case "topic":
			word = wire.InvalidTopic
		case "id":
			word = wire.InvalidID
		case "schedule":
			word = wire.InvalidSchedule
		}
	}
	return wire.Errorf(word, "%s", err.Error())
}

// storeError puts a failure of Redis into the wire's words; what Redis said
// stays in the log.
func (s *Service) storeError(verb string, err error) *wire.Error {
	s.cfg.Logger.Debug("Redis failed a request", "verb", verb, "error", err)
	switch {
	case errors.Is(err, timers.ErrOutOfMemory):
		return wire.Errorf(wire.StorageFull, "Redis is at maxmemory; nothing was stored, raise maxmemory or set fewer timers")
	case errors.Is(err, timers.ErrUnavailable):
		if verb == "get" || verb == "list" || verb == "status" {
			return wire.Errorf(wire.Unavailable, "Redis cannot be read now; try again later")
		}
		return wire.Errorf(wire.Unavailable, "Redis cannot be written to now; nothing was stored, try again later")
	case errors.Is(err, timers.ErrReplicas): // of those that were carried out
		return wire.Errorf(wire.Unconfirmed, "it was carried out, but too few replicas of Redis have confirmed it (LAPSE_MIN_REPLICAS): a failover may lose it; get it, or %s it again with the same id", verb)
	case errors.Is(err, timers.ErrUnconfirmed):
		switch verb {
		case "cancel":
			return wire.Errorf(wire.Unconfirmed, "the reply of Redis was lost: it may have been cancelled; get it, or cancel it again")
		case "retry":
			return wire.Errorf(wire.Unconfirmed, "the reply of Redis was lost: it may have been brought back; get it, or retry it again")
		}
		return wire.Errorf(wire.Unconfirmed, "the reply of Redis was lost: it may be stored; get it, or set it again with the same id")
	}
	return wire.Errorf(wire.Internal, "an error in the service; its log says more")
}

// doubt is the answer to what was carried out while too few replicas have
// confirmed it, or nil. What was not carried out is answered as always, so err
// is taken away.
func (s *Service) doubt(verb string, err *error) *wire.Error {
	if !errors.Is(*err, timers.ErrReplicas) {
		return nil
	}
	e := s.storeError(verb, *err)
	*err = nil
	return e
}

// expired answers those requests that waited too long, and keeps the others.
// Their requesters have given up: carried out now, a set would surprise. It is
// asked right before Redis, since partitions of one batch go one by one.
func expired[T any](s *Service, batch []T, of func(T) request) []T {
	keep := batch[:0]
	for _, r := range batch {
		req := of(r)
		if time.Since(req.received) > s.cfg.RequestTimeout {
			s.fail(req, wire.Errorf(wire.Unavailable, "it waited longer than %s for Redis and was not carried out; nothing was stored", s.cfg.RequestTimeout))
			continue
		}
		keep = append(keep, r)
	}
	return keep
}

// perPartition calls f for each partition that occurs in the batch.
func perPartition[T any](batch []T, partition func(T) int, f func(p int, part []T)) {
	if len(batch) == 0 {
		return
	}
	first := partition(batch[0])
	parts := map[int][]T{}
	for _, r := range batch {
		p := partition(r)
		parts[p] = append(parts[p], r)
	}
	if len(parts) == 1 {
		f(first, batch)
		return
	}
	for p, part := range parts {
		f(p, part)
	}
}

func (s *Service) runSets(ctx context.Context, batch []setRequest) {
	perPartition(batch, func(r setRequest) int { return s.cfg.Store.Keys().Partition(r.Ref) }, func(p int, part []setRequest) {
		if part = expired(s, part, func(r setRequest) request { return r.request }); len(part) == 0 {
			return
		}
		items := make([]timers.SetItem, len(part))
		for i, r := range part {
			items[i] = r.SetItem
		}
		fault.Point("set")
		ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
		results, err := s.cfg.Store.Set(ctx, p, items)
		cancel()
		fault.Point("stored")
		doubt := s.doubt("set", &err)
		if err != nil {
			if errors.Is(err, timers.ErrUnconfirmed) {
				s.cfg.Scheduled(p, time.UnixMilli(0)) // something may be due
			}
			e := s.storeError("set", err)
			for _, r := range part {
				s.fail(r.request, e)
			}
			return
		}
		for i, r := range part {
			res := results[i]
			if res.Err != nil {
				s.fail(r.request, invalid(res.Err))
				continue
			}
			s.cfg.Scheduled(p, res.Due)
			if doubt != nil {
				s.fail(r.request, doubt)
				continue
			}
			s.respondJSON(r.request, wire.SetReply{
				Topic: r.Topic, ID: r.ID, Due: wire.FormatTime(res.Due), Rev: res.Rev,
				Replaced: res.Was != "", Was: string(res.Was),
			})
		}
	})
}

func (s *Service) runCancels(ctx context.Context, batch []refRequest) {
	perPartition(batch, func(r refRequest) int { return s.cfg.Store.Keys().Partition(r.Ref) }, func(p int, part []refRequest) {
		if part = expired(s, part, func(r refRequest) request { return r.request }); len(part) == 0 {
			return
		}
		fault.Point("cancel")
		ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
		results, repaired, err := s.cfg.Store.Cancel(ctx, p, refsOf(part))
		cancel()
		fault.Point("cancelled")
		doubt := s.doubt("cancel", &err)
		if err != nil {
			e := s.storeError("cancel", err)
			for _, r := range part {
				s.fail(r.request, e)
			}
			return
		}
		if repaired > 0 {
			s.cfg.Logger.Warn("removed inconsistent records", "count", repaired)
		}
		for i, r := range part {
			switch res := results[i]; res.Outcome {
			case timers.Cancelled:
				if doubt != nil {
					s.fail(r.request, doubt)
					continue
				}
				s.respondJSON(r.request, wire.CancelReply{Topic: r.Topic, ID: r.ID, Rev: res.Rev})
			case timers.CancelTooLate:
				e := wire.Errorf(wire.Conflict, "too late: timer %+q of topic %s is or may be being delivered; no further attempt will be made", wire.Cut(r.ID), r.Topic)
				stopped := true
				e.State, e.Rev, e.Stopped = wire.StateFiring, res.Rev, &stopped
				s.fail(r.request, e)
			case timers.CancelDead:
				e := wire.Errorf(wire.Conflict, "too late: timer %+q of topic %s was given up on after an attempt that may have been delivered; it is gone now", wire.Cut(r.ID), r.Topic)
				stopped := true
				e.State, e.Rev, e.Stopped = wire.StateDead, res.Rev, &stopped
				s.fail(r.request, e)
			default:
				s.fail(r.request, notFound(r.Ref))
			}
		}
	})
}

func (s *Service) runRetries(ctx context.Context, batch []refRequest) {
	perPartition(batch, func(r refRequest) int { return s.cfg.Store.Keys().Partition(r.Ref) }, func(p int, part []refRequest) {
		if part = expired(s, part, func(r refRequest) request { return r.request }); len(part) == 0 {
			return
		}
		fault.Point("retry")
		ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
		results, now, err := s.cfg.Store.Retry(ctx, p, refsOf(part))
		cancel()
		fault.Point("retried")
		doubt := s.doubt("retry", &err)
		if err != nil {
			if errors.Is(err, timers.ErrUnconfirmed) {
				s.cfg.Scheduled(p, time.UnixMilli(0)) // something may be due
			}
			e := s.storeError("retry", err)
			for _, r := range part {
				s.fail(r.request, e)
			}
			return
		}
		for i, r := range part {
			switch res := results[i]; res.Outcome {
			case timers.Retried:
				s.cfg.Scheduled(p, now)
				if doubt != nil {
					s.fail(r.request, doubt)
					continue
				}
				s.respondJSON(r.request, wire.RetryReply{Topic: r.Topic, ID: r.ID, Due: wire.FormatTime(res.Due), Rev: res.Rev})
			case timers.RetryNotDead:
				e := wire.Errorf(wire.Conflict, "timer %+q of topic %s is not dead: it is %s and needs no retry", wire.Cut(r.ID), r.Topic, res.State)
				e.State, e.Rev = string(res.State), res.Rev
				s.fail(r.request, e)
			default:
				s.fail(r.request, notFound(r.Ref))
			}
		}
	})
}

func (s *Service) runGets(ctx context.Context, batch []refRequest) {
	batch = expired(s, batch, func(r refRequest) request { return r.request })
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	found, err := s.cfg.Store.Get(ctx, refsOf(batch))
	if err != nil {
		e := s.storeError("get", err)
		for _, r := range batch {
			s.fail(r.request, e)
		}
		return
	}
	for i, r := range batch {
		t := found[i]
		if t == nil {
			s.fail(r.request, notFound(r.Ref))
			continue
		}
		h := getHeaders(t)
		size, most := messageSize(h, t.Payload), int(s.cfg.Conn.MaxPayload())
		if size > most && t.State == timers.Dead {
			// The bound of a set knows of no reason; the payload is worth more.
			h.Del(wire.HeaderReason)
			size = messageSize(h, t.Payload)
		}
		if size > most {
			s.fail(r.request, wire.Errorf(wire.TooLarge, "the timer has %d bytes with its headers, the NATS server takes %d", size, most))
			continue
		}
		s.respond(r.request, h, t.Payload)
	}
}

func notFound(r timers.Ref) *wire.Error {
	return wire.Errorf(wire.NotFound, "there is no timer %+q of topic %s: it never was, was delivered, or was cancelled", wire.Cut(r.ID), r.Topic)
}

func refsOf(batch []refRequest) []timers.Ref {
	refs := make([]timers.Ref, len(batch))
	for i, r := range batch {
		refs[i] = r.Ref
	}
	return refs
}

// runReads answers lists and status, one at a time.
func (s *Service) runReads(ctx context.Context, batch []readRequest) {
	for _, r := range expired(s, batch, func(r readRequest) request { return r.request }) {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
		if r.verb == "status" {
			s.runStatus(ctx, r)
		} else {
			s.runList(ctx, r)
		}
		cancel()
	}
}

func (s *Service) runList(ctx context.Context, r readRequest) {
	page, end, more, err := s.cfg.Store.List(ctx, r.topic, r.list.State, r.after, r.list.Limit)
	if err != nil {
		s.fail(r.request, s.storeError("list", err))
		return
	}
	reply := wire.ListReply{Timers: make([]wire.ListItem, 0, len(page))}
	// Room for the frame and a cursor of the longest member, in base64.
	room := int(s.cfg.Conn.MaxPayload()) - len(`{"timers":[],"cursor":""}`) - 2*(timers.MaxTopic+timers.MaxID+24)
	for i, t := range page {
		item := wire.ListItem{Topic: t.Topic, ID: t.ID, Due: wire.FormatTime(t.Due), Rev: t.Rev, State: string(t.State), Attempts: t.Attempts}
		if r.list.State == wire.ListDead { // others know no such field
			item.Reason = t.Reason
		}
		b, err := encodeJSON(item)
		if err != nil {
			continue
		}
		if room -= len(b) + 1; room < 0 && i > 0 {
			last := page[i-1]
			end, more = timers.Cursor{Due: last.Due.UnixMilli(), Member: last.Member()}, true
			break
		}
		reply.Timers = append(reply.Timers, item)
	}
	if more {
		reply.Cursor = writeCursor(end)
	}
	s.respondJSON(r.request, reply)
}

// readList reads the body of a list request.
func readList(body []byte) (wire.ListRequest, timers.Cursor, *wire.Error) {
	req := wire.ListRequest{Limit: wire.DefaultListLimit}
	if len(bytes.TrimSpace(body)) > 0 {
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		err := d.Decode(&req)
		if err == nil && d.More() {
			err = errors.New("more than one JSON value")
		}
		if err == nil {
			if _, next := d.Token(); next != io.EOF {
				err = errors.New("something follows the JSON value")
			}
		}
		if err != nil {
			return req, timers.Cursor{}, wire.Errorf(wire.InvalidRequest, `body %+q: want an empty body or JSON {"limit":n,"cursor":s,"state":s} (%s)`, wire.Cut(string(body)), err)
		}
	}
	if req.Limit < 1 || req.Limit > wire.MaxListLimit {
		return req, timers.Cursor{}, wire.Errorf(wire.InvalidRequest, "limit %d: want 1 to %d", req.Limit, wire.MaxListLimit)
	}
	switch req.State {
	case "", wire.ListDead, wire.ListPending:
	default:
		return req, timers.Cursor{}, wire.Errorf(wire.InvalidRequest, "state %+q: want %s or %s, or leave it out for all", wire.Cut(req.State), wire.ListDead, wire.ListPending)
	}
	after, ok := readCursor(req.Cursor)
	if !ok {
		return req, timers.Cursor{}, wire.Errorf(wire.InvalidRequest, "cursor %+q: want one from the page before, unchanged", wire.Cut(req.Cursor))
	}
	return req, after, nil
}

const maxCursorMember = 4096 // bytes

func writeCursor(c timers.Cursor) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(c.Due, 10) + " " + c.Member))
}

func readCursor(s string) (timers.Cursor, bool) {
	if s == "" {
		return timers.Cursor{}, true
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return timers.Cursor{}, false
	}
	due, member, ok := strings.Cut(string(b), " ")
	if !ok {
		return timers.Cursor{}, false
	}
	ms, err := strconv.ParseInt(due, 10, 64)
	if err != nil || ms < 0 {
		return timers.Cursor{}, false
	}
	// A foreign hand may have put any member where a page ended.
	if len(member) > maxCursorMember {
		return timers.Cursor{}, false
	}
	return timers.Cursor{Due: ms, Member: member}, true
}
