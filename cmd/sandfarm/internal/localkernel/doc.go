// Package localkernel makes a kernel of the farm look like one of this machine: it listens where a connection file of Jupyter says, with ZeroMQ,
// and passes what comes on to the WebSocket of a kernel at URL/jupyter, and back.
//
// The kernel lives as long as the client wants it: it is shut down when the client says so, and when the client or this process ends in order.
// A client that restarts the kernel starts a new process with the same connection file: that finds the sandbox again, by the session that is
// named after the key in the file, so the sandbox and its files outlive a restart. A broken connection to the farm is made again, and the farm
// sends again what was missed. If the sandbox itself ends, the next message of the client starts another one, and says so.
package localkernel
