// Package browsertest has no code: its tests look at the live page, and at the
// page of docs/browser, with a real browser. They need Chromium, and npm for
// the latter; make test-browser installs what is missing.
package browsertest
