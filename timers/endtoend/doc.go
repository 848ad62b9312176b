// Package endtoend holds only tests: the real program on real servers, spoken
// to as its users do. A [ledger] keeps what was answered and what arrived, and
// says where the two disagree; timerstest.CheckInvariants says what was left
// behind in Redis.
package endtoend
