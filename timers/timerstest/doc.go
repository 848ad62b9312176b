// Package timerstest starts the real servers that tests of timers need, and
// checks what they must never leave behind in Redis. Mocks of Redis or NATS
// would share our beliefs about them, which is what has to be tested.
//
// A server belongs to the test that started it and ends with it; on Linux it
// ends with the test binary even when that is killed. A program that is not
// installed fails the test and is never a reason to skip it. All helpers must
// be called from the goroutine of the test, as [testing.TB.Fatal] demands.
package timerstest
