package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/lapse-timers/lapse/timers/wire"
)

// MaxPage is the most timers that one page of a listing holds.
const MaxPage = wire.MaxListLimit

// firstPage is short, for loops that end early.
const firstPage = wire.DefaultListLimit

// ListItem is one timer of a listing.
type ListItem struct {
	Topic    string
	ID       string
	Due      time.Time // on Redis's clock
	Rev      int64
	State    State
	Attempts int
	Reason   string // why it was given up on; from ListDeadPage only
}

// Page is one page of a listing.
type Page struct {
	Timers []ListItem
	Cursor string // of the next page; the listing is finished only when it is empty
}

// List yields the timers of the topic and of all topics below it, or all
// timers when the topic is empty, soonest first. It asks page by page, each
// under ctx or, when that has no deadline, under the client's timeout; the
// first page is a short one. It ends with ctx. An error, that of ctx among
// them, is the last thing it yields.
//
// A listing is no snapshot: a timer that is replaced while it runs may be seen
// twice, with different revs, or not at all.
func (c *Client) List(ctx context.Context, topic string) iter.Seq2[ListItem, error] {
	return func(yield func(ListItem, error) bool) {
		cursor, limit := "", firstPage
		for {
			page, err := c.ListPage(ctx, topic, limit, cursor)
			if err != nil {
				yield(ListItem{}, err)
				return
			}
			for _, item := range page.Timers {
				if err := ctx.Err(); err != nil {
					yield(ListItem{}, fail(err, wire.Unavailable, "list: %v", err))
					return
				}
				if !yield(item, nil) {
					return
				}
			}
			if page.Cursor == "" {
				return
			}
			cursor, limit = page.Cursor, MaxPage
		}
	}
}

// ListPage asks for one page of [Client.List]: at most limit timers (1 to
// [MaxPage]; 0 for the service's default of 100), from the cursor of the page
// before, "" for the first. A page may be short, or empty, before the last.
func (c *Client) ListPage(ctx context.Context, topic string, limit int, cursor string) (Page, error) {
	return c.listPage(ctx, topic, wire.ListRequest{Limit: limit, Cursor: cursor})
}

// ListDeadPage is [Client.ListPage] of the timers that were given up on.
func (c *Client) ListDeadPage(ctx context.Context, topic string, limit int, cursor string) (Page, error) {
	return c.listPage(ctx, topic, wire.ListRequest{Limit: limit, Cursor: cursor, State: wire.ListDead})
}

// ListPendingPage is [Client.ListPage] without the timers that were given up on.
func (c *Client) ListPendingPage(ctx context.Context, topic string, limit int, cursor string) (Page, error) {
	return c.listPage(ctx, topic, wire.ListRequest{Limit: limit, Cursor: cursor, State: wire.ListPending})
}

func (c *Client) listPage(ctx context.Context, topic string, req wire.ListRequest) (Page, error) {
	if topic != "" {
		if err := checkTopic(topic); err != nil {
			return Page{}, err
		}
	}
	body, err := json.Marshal(req)
	if err != nil {
		return Page{}, fmt.Errorf("list: %w", err)
	}
	m := nats.NewMsg(c.prefix.List(topic))
	m.Data = body
	reply, err := c.read(ctx, m)
	if err != nil {
		return Page{}, fmt.Errorf("list: %w", err)
	}
	page, ok := decodePage(reply.Data)
	// A cursor that does not move would have the caller ask forever.
	if !ok || (page.Cursor == req.Cursor && req.Cursor != "") {
		return Page{}, fmt.Errorf("list: %w", foreign(m.Subject, reply, false))
	}
	return page, nil
}

// decodePage reads a page; ok is false for what is none. The cursor tells:
// every page has one, if only an empty one.
func decodePage(data []byte) (page Page, ok bool) {
	var r struct {
		Timers []wire.ListItem `json:"timers"`
		Cursor *string         `json:"cursor"`
	}
	if json.Unmarshal(data, &r) != nil || r.Cursor == nil {
		return Page{}, false
	}
	page = Page{Timers: make([]ListItem, 0, len(r.Timers)), Cursor: *r.Cursor}
	for _, t := range r.Timers {
		due, err := wire.ParseTime(t.Due)
		if err != nil {
			return Page{}, false
		}
		page.Timers = append(page.Timers, ListItem{
			Topic: t.Topic, ID: t.ID, Due: due, Rev: t.Rev, State: State(t.State), Attempts: t.Attempts, Reason: t.Reason,
		})
	}
	return page, true
}

// Status is how the service is, as the instance that answered sees it. Times
// are RFC 3339 texts, lags milliseconds.
type Status = wire.StatusReply

// Status asks one instance how the service is.
func (c *Client) Status(ctx context.Context) (Status, error) {
	m := nats.NewMsg(c.prefix.Status())
	reply, err := c.read(ctx, m)
	if err != nil {
		return Status{}, fmt.Errorf("status: %w", err)
	}
	var s Status
	if json.Unmarshal(reply.Data, &s) != nil || s.Instance == "" {
		return Status{}, fmt.Errorf("status: %w", foreign(m.Subject, reply, false))
	}
	return s, nil
}
