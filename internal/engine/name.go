package engine

// Name is the name of a sandbox's container. It is derived from the sandbox's id, so a container can be found and removed by the record
// alone.
func (e *Engine) Name(sandboxID string) string { return e.namespace + "-" + sandboxID }
