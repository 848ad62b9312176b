package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Word is the stable name of an error. Words are compared, messages are read.
type Word string

// The words that Lapse answers with. Their codes are in [Word.Code].
const (
	InvalidTopic    Word = "invalid_topic"
	InvalidID       Word = "invalid_id"
	InvalidSchedule Word = "invalid_schedule"
	InvalidHeader   Word = "invalid_header"
	InvalidRequest  Word = "invalid_request"
	NotFound        Word = "not_found"
	Conflict        Word = "conflict"
	TooLarge        Word = "too_large"
	Quota           Word = "quota"
	Internal        Word = "internal"
	Unavailable     Word = "unavailable"
	Unconfirmed     Word = "unconfirmed"
	StorageFull     Word = "storage_full"
)

// codes is the one table of error codes (docs/protocol.md, "Errors"); the
// service writes by it and the client reads by it.
var codes = map[Word]int{
	InvalidTopic:    400,
	InvalidID:       400,
	InvalidSchedule: 400,
	InvalidHeader:   400,
	InvalidRequest:  400,
	NotFound:        404,
	Conflict:        409,
	TooLarge:        413,
	Quota:           429,
	Internal:        500,
	Unavailable:     503, // nothing was stored
	Unconfirmed:     504, // it may have been stored
	StorageFull:     507,
}

// Code is the numeric code of the word, 500 for one that is not in the table.
func (w Word) Code() int {
	if c, ok := codes[w]; ok {
		return c
	}
	return codes[Internal]
}

// Words returns every word of the table, for documentation and tests.
func Words() []Word {
	out := make([]Word, 0, len(codes))
	for w := range codes {
		out = append(out, w)
	}
	return out
}

// Error is an error reply. Two of them match under [errors.Is] when their
// words are the same, so that the sentinels below serve callers.
type Error struct {
	Word    Word   `json:"error"`
	Message string `json:"message"`

	// For Conflict: the state and rev of the timer, and for a cancel whether no
	// further attempt will be made.
	State   string `json:"state,omitempty"`
	Rev     int64  `json:"rev,omitempty"`
	Stopped *bool  `json:"stopped,omitempty"`
}

// Sentinels to match with [errors.Is].
var (
	ErrNotFound    = &Error{Word: NotFound, Message: "there is no such timer"}
	ErrConflict    = &Error{Word: Conflict, Message: "too late: it is or may be being delivered; or a retry of what is not dead"}
	ErrTooLarge    = &Error{Word: TooLarge, Message: "the timer is too large to be delivered"}
	ErrUnavailable = &Error{Word: Unavailable, Message: "the service cannot take requests now; nothing was stored"}
	ErrUnconfirmed = &Error{Word: Unconfirmed, Message: "the outcome is unknown: it may have been stored"}
	ErrStorageFull = &Error{Word: StorageFull, Message: "Redis is out of memory; nothing was stored"}
)

// Errorf makes an error of the word; the message is made one ASCII line.
func Errorf(w Word, format string, args ...any) *Error {
	return &Error{Word: w, Message: ascii(fmt.Sprintf(format, args...))}
}

func (e *Error) Error() string { return e.Message + " (" + string(e.Word) + ")" }

// Code is the numeric code of the error's word.
func (e *Error) Code() int { return e.Word.Code() }

// Is matches errors of the same word.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Word == e.Word
}

// Encode returns what an error reply carries: the values of [HeaderErrorCode]
// and [HeaderError], and the JSON body.
func (e *Error) Encode() (code, description string, body []byte) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)              // people read "@in <duration>" in it
	if err := enc.Encode(e); err != nil { // strings, an int and a bool always marshal
		panic(err)
	}
	return strconv.Itoa(e.Code()), e.Message, bytes.TrimSpace(b.Bytes())
}

// DecodeError reads an error reply: the values of its two headers and its
// body. Replies without a readable body (a proxy's, an older service's) keep
// the description, and the nearest word for the code.
func DecodeError(code, description string, body []byte) *Error {
	var e Error
	if err := json.Unmarshal(body, &e); err == nil && e.Word != "" {
		return &e
	}
	w := Internal
	switch n, _ := strconv.Atoi(code); {
	case n == 400:
		w = InvalidRequest
	default:
		for word, c := range codes {
			if c == n && c != 400 {
				w = word
			}
		}
	}
	return &Error{Word: w, Message: description}
}

// Cut shortens s for an error message, on a rune boundary where there is one.
func Cut(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	cut := most
	for i := 0; i < utf8.UTFMax && cut > 0 && !utf8.RuneStart(s[cut]); i++ {
		cut--
	}
	return s[:cut] + "..."
}

// ascii makes s one line of printable ASCII: headers hold nothing else, and
// some clients lose all headers over one other byte.
func ascii(s string) string {
	clean := func(r rune) bool { return r < ' ' || r > '~' }
	if strings.IndexFunc(s, clean) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if clean(r) {
			b.WriteByte('?')
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
