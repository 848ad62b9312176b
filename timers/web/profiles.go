package web

import (
	"net/http"
	"net/http/pprof"
)

// profiles serves Go's profiles on a mux of its own: what the package registers
// by itself is on the default one, which nobody serves. A profile takes as long
// as its seconds parameter says; the package extends the server's limit for it.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A page of somebody else could not read a profile, but have one taken for hours.
		if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
			http.Error(w, "the request comes from another page", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}
