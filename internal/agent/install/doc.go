// Package install installs Python and Node packages into a sandbox, and finds out which ones code needs. The installers (uv, pip,
// npm) run in the sandbox and reach the indexes through package egress. An install reports each package separately: one that
// cannot be installed does not prevent the others.
package install
