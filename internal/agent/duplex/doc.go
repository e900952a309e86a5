// Package duplex makes a connection of a request and its answer: bytes pass both ways at the same time, each way can be ended by itself, and a
// receiver that does not read holds its sender back after Window bytes, whatever the buffers between the two are. Both ends use the same
// frames: four bytes, the kind and the length or amount, and for data the data.
package duplex
