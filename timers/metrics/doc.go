// Package metrics is what Lapse tells Prometheus: every name and label is in
// this package, and nowhere else (ADR 32).
//
// What happens for each timer or request is counted as it happens, through the
// methods that main hands to the parts: [Metrics.Attempt], [Metrics.Request],
// [Metrics.Call]. They cost some hundred nanoseconds, no lock and no
// allocation. What the parts count anyway is read when somebody scrapes, as is
// what Redis knows: a bounded number of calls, the answers of which serve the
// scrapes of the next second too. A scrape never waits for a Redis that is away
// for longer than a second, and tells what is known without it.
//
// Labels are bounded. The only one whose values others choose is the topic, of
// which [ParseTopics] has the rule.
package metrics
