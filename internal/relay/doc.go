// Package relay passes interactive streams between the API and the agent of a sandbox, over the sandbox's worker (ADR 12). Both ends are here:
//
//   - Path, the API's, picks a live worker of the sandbox's node and falls over to another one.
//   - Server, the worker's, is a listener to which only the API can connect. It passes each request on to the agent of the sandbox that it names, as one
//     stream; a connection to a port it joins with the port itself. It compares the sandbox's generation with the record first, counts streams,
//     charges their memory, and notes that the sandbox is in use while bytes pass. It knows nothing of what they carry.
//
// Between them are the certificates by which the API and the workers know each other (Identity, Authorities), and the addresses of sandboxes behind
// a worker (Target).
package relay
