//go:build !linux

package reconcile

// newAlarm makes an alarm; the other systems' Go timers are precise enough.
func newAlarm() *alarm { return goAlarm() }
