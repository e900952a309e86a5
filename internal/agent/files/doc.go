// Package files serves the files of a sandbox's workspace: reading, writing, listing, archives, and changes since an
// execution began. Paths come from callers and the workspace belongs to user code, so every path is resolved inside the
// workspace, and any entry may be a link, a pipe or a device.
package files
