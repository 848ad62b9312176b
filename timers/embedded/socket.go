package embedded

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
)

// maxSocketPath is below what the kernels take in a socket's address: 107
// bytes on Linux, 103 on macOS.
const maxSocketPath = 100

// socket is a way for this process to reach a unix socket whose own path may
// be too long for its address. The server needs none: it listens on a name
// relative to its working directory, which we cannot, since go-redis's URLs
// know no relative paths and the working directory is not ours to change.
type socket struct {
	path string
	dir  *os.File // open while /proc/self/fd is in use, or nil
}

func openSocket(dir, name string) (*socket, error) {
	path := filepath.Join(dir, name)
	if len(path) <= maxSocketPath {
		return &socket{path: path}, nil
	}
	if runtime.GOOS == "linux" {
		f, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		short := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		if _, err := os.Stat(short); err == nil {
			return &socket{path: short + "/" + name, dir: f}, nil
		}
		f.Close()
	}
	return nil, fmt.Errorf("data directory %s: the path of the socket in it has %d bytes, at most %d work here; set LAPSE_DATA_DIR to a shorter path",
		filepath.Dir(dir), len(path), maxSocketPath)
}

func (s *socket) url() string { return (&url.URL{Scheme: "unix", Path: s.path}).String() }

// knock says whether anybody listens. go-redis would print each failure to
// connect and wait before it reports it; while a server starts they are many.
func (s *socket) knock(ctx context.Context) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", s.path)
	if err != nil {
		return err
	}
	return c.Close()
}

func (s *socket) close() {
	if s.dir != nil {
		_ = s.dir.Close() // only ever read
	}
}
