package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/lapse-timers/lapse/timers/wire"
)

// fix does what the remedy of a finding says.
type fix struct {
	check string
	do    func(context.Context) error
}

// Fix looks, does what can safely be done at run time (the findings that are
// fixable), and looks again. What it mended is fixed in the report, and why says
// what a restart of Redis loses; what it tried in vain says so.
func Fix(ctx context.Context, d Deployment) wire.DoctorReport {
	before := examine(ctx, d)
	defer before.close()
	if len(before.fixes) == 0 {
		return before.report()
	}
	failed := map[string]error{}
	for _, f := range before.fixes {
		failed[f.check] = f.do(ctx)
	}
	after := examine(ctx, d)
	defer after.close()
	for i := range after.findings {
		f := &after.findings[i]
		err, tried := failed[f.Check]
		switch was := before.find(f.Check); {
		case !tried:
		case err != nil:
			f.Why = strings.TrimSpace(f.Why + fmt.Sprintf(" (--fix was refused: %v)", err))
		case f.Status == wire.FindingOK:
			f.Fixed, f.Wanted = true, was.Wanted
			f.Why = "it was: " + was.Found
			if _, persistent, ok := strings.Cut(was.Remedy, "\nredis.conf: "); ok {
				f.Why += ". A restart of Redis forgets what was set now"
				f.Remedy = lines("redis.conf: "+persistent, "# or, where redis-server was started with a file that it may write:", after.redis.cli+" CONFIG REWRITE")
			}
		}
	}
	return after.report()
}
