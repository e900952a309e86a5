// Package placement decides which creates this worker takes, and reserves what their sandboxes need on its node.
//
//   - gate.go: memory and cores. One script in Redis holds the reservations of all nodes; while its own node is full, or much fuller
//     than another, the gate pauses creates.
//   - devices.go, gpulease.go, gpureconcile.go: GPUs and their leases, under the generation of the sandbox.
//   - pool.go, poolclaim.go, poolconfig.go, poolfill.go: the warm pool, sandboxes that are started ahead of need.
//
// The reconciler calls ReconcileReservations and ReconcileGPUs to correct what a dead worker left.
package placement
