package embedded

import (
	"os"
	"path/filepath"
	"testing"
)

// Of what redis-server logged at a start that failed, the reason is told, and not
// what every start logs.
func TestLastWords(t *testing.T) {
	before := "1:M 01 Dec 2026 02:00:00.000 # of a run before\n"
	for name, tt := range map[string]struct{ log, want string }{
		"the reason alone": {
			"7:M 01 Dec 2026 02:58:02.077 # WARNING Memory overcommit must be enabled!\n" +
				"7:M 01 Dec 2026 02:58:02.079 * Reading RDB base file on AOF loading...\n" +
				"7:M 01 Dec 2026 02:58:02.080 # Can't open the append-only file a.aof: Permission denied\n",
			"Can't open the append-only file a.aof: Permission denied",
		},
		"before the configuration is read": {
			"\n*** FATAL CONFIG FILE ERROR (Redis 7.0.15) ***\nReading the configuration file, at line 112\n>>> 'foo \"1\"'\n",
			"*** FATAL CONFIG FILE ERROR (Redis 7.0.15) ***\nReading the configuration file, at line 112\n>>> 'foo \"1\"'",
		},
		"nothing but chatter": {
			"7:M 01 Dec 2026 02:58:02.079 * Ready to accept connections\n",
			"7:M 01 Dec 2026 02:58:02.079 * Ready to accept connections",
		},
	} {
		log := filepath.Join(t.TempDir(), "redis.log")
		if err := os.WriteFile(log, []byte(before+tt.log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := (&child{log: log, logFrom: int64(len(before))}).lastWords(); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
