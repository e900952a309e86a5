// Package jupyter serves the farm's kernels to clients of Jupyter: the REST routes and the WebSocket of a Jupyter server, as far as its clients
// use them (docs/jupyter.md).
//
// A kernel is the context default of a sandbox with a label. Its id is the sandbox's, written as a UUID, so there is no table of kernels. A cell
// is a job in the sandbox's FIFO, and what a client sees is made of the job's events: it can be made again for a client that comes back, by any
// API process. What is not code (completion, comms, input) goes over the live path.
//
// Guarantees: a cell always ends with a reply and the status idle, whatever becomes of its kernel, sandbox or worker. What a client sends is
// bounded before it is decoded, and its memory is charged. A client that does not read is closed; it does not stop its cell.
package jupyter
