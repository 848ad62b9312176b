package settings

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

const prefix = "LAPSE_"

// injected are names that Kubernetes sets in every pod next to a Service
// called lapse or lapse-something
// (https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables).
var injected = regexp.MustCompile(`^LAPSE_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// CheckNames demands that every variable of environ, as [os.Environ] gives it,
// whose name begins with LAPSE_ is one of known: a slip in a name would
// otherwise leave the default in force without a word. Errors name the nearest.
func CheckNames(environ, known []string) error {
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, prefix) || slices.Contains(known, name) || injected.MatchString(name) {
			continue
		}
		near, edits := nearest(name, known)
		if 2*edits <= len(name)-len("LAPSE") {
			return fmt.Errorf("%s is no setting; the nearest is %s (lapse help lists all)", name, near)
		}
		return fmt.Errorf("%s is no setting, and none is like it (lapse help lists all)", name)
	}
	return nil
}

// nearest is the name of the list that takes the fewest edits to reach, and how
// many these are.
func nearest(name string, list []string) (near string, edits int) {
	for _, other := range list {
		if n := levenshtein.ComputeDistance(name, other); near == "" || n < edits {
			near, edits = other, n
		}
	}
	return near, edits
}
