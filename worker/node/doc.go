// Package node is the engine's side of sandboxes: their images, their containers, the connection to the agent in each, and
// the deadlines that agents know. A Node is the worker's Docker engine; every other package of the worker builds on it.
//
// A container carries what is needed to find its sandbox again when Redis has lost the records: the record itself, and the
// epoch of the records in which it was made (see LabelRecord and LabelEpoch).
package node
