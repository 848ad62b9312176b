package service

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// What was accepted while the service ends is among the rest, which is answered;
// what comes later is turned away.
func TestNothingIsAcceptedBehindTheRest(t *testing.T) {
	for range 500 {
		b := &batcher[refRequest]{maxBytes: 1 << 20, queue: make(chan refRequest, 4096)}
		accepted := 0
		var adding sync.WaitGroup
		adding.Go(func() {
			for b.add(refRequest{}) {
				accepted++
			}
		})
		n := len(b.rest())
		adding.Wait()
		require.Equal(t, accepted, n)
	}
}
