// Package browsertest drives the dashboard in Chromium, against a farm of its own, as people do: `make test-ui`. What the tests see is kept as
// pictures for docs/dashboard.md when SANDFARM_TEST_PICTURES names a folder.
package browsertest
