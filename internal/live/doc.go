// Package live is what the two ends of the live path share: the certificates by which the API and the workers know each other, the
// addresses of sandboxes behind a worker, and the API's end, which picks a live worker of a sandbox's node and falls over to another one.
// ADR 12 has the reasons. Package worker/live is the worker's end.
package live
