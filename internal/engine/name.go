package engine

// Name is what a sandbox's container is called. It follows from the sandbox's id, so a container can be found, and
// removed, by whoever has the record alone.
func (e *Engine) Name(sandboxID string) string { return e.namespace + "-" + sandboxID }

// Runtime is the OCI runtime that sandboxes are made with by default, "" for the engine's own default.
func (e *Engine) Runtime() string { return e.runtime }
