package wire

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// DefaultPrefix is the prefix of a deployment that sets none.
const DefaultPrefix = "timers"

// MaxPrefix is the longest prefix in bytes: it stands in every subject and
// every key, so it must leave room for the topic.
const MaxPrefix = 64

var verbs = []string{"set", "get", "cancel", "retry", "list", "status", "fired", "dead"}

var prefixGrammar = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

// CheckPrefix says whether p can name a deployment: dotted tokens of
// [A-Za-z0-9_-]+, at most [MaxPrefix] bytes.
func CheckPrefix(p string) error {
	if len(p) > MaxPrefix || !prefixGrammar.MatchString(p) {
		return fmt.Errorf("prefix %+q: want dotted tokens of [A-Za-z0-9_-], at most %d bytes, such as %q", Cut(p), MaxPrefix, DefaultPrefix)
	}
	for i, token := range strings.Split(p, ".") {
		if i > 0 && slices.Contains(verbs, token) {
			return fmt.Errorf("prefix %+q: %q is a verb of the protocol; under it, requests for the prefix before it would come here", Cut(p), token)
		}
	}
	return nil
}

// Prefix names a deployment and with it every subject Lapse uses. It is the
// one place that spells subjects.
type Prefix string

// Set is the subject that schedules a timer of the topic.
func (p Prefix) Set(topic string) string { return p.verb("set", topic) }

// Get is the subject that reads a timer of the topic.
func (p Prefix) Get(topic string) string { return p.verb("get", topic) }

// Cancel is the subject that cancels a timer of the topic.
func (p Prefix) Cancel(topic string) string { return p.verb("cancel", topic) }

// Retry is the subject that brings a dead timer of the topic back.
func (p Prefix) Retry(topic string) string { return p.verb("retry", topic) }

// List is the subject that lists the topic and everything below it;
// everything, when the topic is empty.
func (p Prefix) List(topic string) string { return p.verb("list", topic) }

// Status is the subject that answers how the service is.
func (p Prefix) Status() string { return string(p) + ".status" }

// Fired is the subject on which timers of the topic are delivered. The topic
// may be a NATS wildcard such as ">" for subscribers.
func (p Prefix) Fired(topic string) string { return p.verb("fired", topic) }

// Dead is the subject on which timers of the topic are announced that Lapse
// gave up on.
func (p Prefix) Dead(topic string) string { return p.verb("dead", topic) }

func (p Prefix) verb(verb, topic string) string {
	if topic == "" {
		return string(p) + "." + verb
	}
	return string(p) + "." + verb + "." + topic
}

// Topic returns the topic in subject, given the verb it was received on, and
// "" when there is none.
func (p Prefix) Topic(verb, subject string) string {
	rest, ok := strings.CutPrefix(subject, string(p)+"."+verb+".")
	if !ok {
		return ""
	}
	return rest
}

// Covers says whether subject lies under the prefix: what Lapse must never be
// talked into publishing to by a reply subject.
func (p Prefix) Covers(subject string) bool {
	return subject == string(p) || strings.HasPrefix(subject, string(p)+".")
}

// ServiceName is the name of the NATS micro service. Its grammar has no dots,
// so they become dashes; the full prefix stands in the metadata.
func (p Prefix) ServiceName() string { return strings.ReplaceAll(string(p), ".", "-") }

// DefaultStream is the name of the stream that Lapse makes when none is
// configured: the prefix in capitals, with underscores for dots, since stream
// names have none.
func (p Prefix) DefaultStream() string {
	return strings.ToUpper(strings.ReplaceAll(string(p), ".", "_"))
}

// Metadata keys of the NATS micro service.
const (
	MetaPrefix     = "lapse-prefix"     // the full prefix
	MetaDeployment = "lapse-deployment" // the random id in Redis under <prefix>:meta
	MetaInstance   = "lapse-instance"   // random per process
)
