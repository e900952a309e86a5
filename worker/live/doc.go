// Package live is the worker's end of the live path: a listener to which only the API can connect, and which passes each request on to the
// agent of the sandbox that it names, as one stream. It compares the sandbox's generation with the record first, counts streams, charges their
// memory, and notes that the sandbox is in use while bytes pass. A connection to a port it joins
// with the port itself. It knows nothing of what either carries.
package live
