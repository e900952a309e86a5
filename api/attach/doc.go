// Package attach serves one WebSocket that is attached to a process: output, input, size and exit as binary messages (docs/rest.md, "Attach").
//
// Guarantees: the memory of a connection is bounded whatever its caller and the process do; a caller that takes nothing, or is gone, is
// noticed; every end has a close code that says why. It does not look for processes, keys or quotas: who calls Serve has done that.
package attach
