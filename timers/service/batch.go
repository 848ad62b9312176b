package service

import (
	"context"
	"sync"
	"sync/atomic"
)

// batcher collects what concurrent requesters ask for and runs it in batches:
// while one batch is on its way to Redis the next one gathers, and nothing
// waits for a batch to fill. What does not fit into the queue is turned away
// at once, so that no request waits unseen.
type batcher[T sized] struct {
	run      func(ctx context.Context, batch []T)
	most     int // items of one batch
	workers  int
	maxBytes int64 // of what waits

	queue chan T
	bytes atomic.Int64

	adding sync.RWMutex // held to read by who adds
	closed bool         // work has ended: nobody would carry it out
}

// sized is what a batcher can hold: size is about its payload in bytes.
type sized interface{ size() int }

func newBatcher[T sized](workers, most int, run func(context.Context, []T)) *batcher[T] {
	return &batcher[T]{run: run, most: most, workers: workers, maxBytes: 64 << 20, queue: make(chan T, 16384)}
}

// add queues the item, or says that there is no room.
func (b *batcher[T]) add(item T) bool {
	b.adding.RLock()
	defer b.adding.RUnlock()
	if b.closed {
		return false
	}
	n := int64(item.size())
	if waiting := b.bytes.Add(n); waiting > b.maxBytes && waiting > n {
		b.bytes.Add(-n)
		return false
	}
	select {
	case b.queue <- item:
		return true
	default:
		b.bytes.Add(-n)
		return false
	}
}

// rest is what came in while work ended; it is called after that.
func (b *batcher[T]) rest() []T {
	b.adding.Lock()
	b.closed = true
	b.adding.Unlock()
	var items []T
	for {
		select {
		case item := <-b.queue:
			items = append(items, item)
		default:
			return items
		}
	}
}

// work runs batches until ctx ends, and then what is queued still: it was
// accepted.
func (b *batcher[T]) work(ctx context.Context) {
	var wg sync.WaitGroup
	for range b.workers {
		wg.Go(func() {
			batch := make([]T, 0, b.most)
			for {
				batch = batch[:0]
				select {
				case item := <-b.queue:
					batch = append(batch, item)
				default:
					select {
					case item := <-b.queue:
						batch = append(batch, item)
					case <-ctx.Done():
						return
					}
				}
				var bytes int
			drain:
				for len(batch) < b.most && bytes < maxBatchBytes {
					select {
					case item := <-b.queue:
						batch = append(batch, item)
						bytes += item.size()
					default:
						break drain
					}
				}
				bytes = 0
				for _, item := range batch {
					bytes += item.size()
				}
				b.run(context.WithoutCancel(ctx), batch)
				b.bytes.Add(-int64(bytes))
				clear(batch)
			}
		})
	}
	wg.Wait()
}

// maxBatchBytes ends a batch early, so that large payloads do not hold up
// Redis for long at a time.
const maxBatchBytes = 4 << 20
