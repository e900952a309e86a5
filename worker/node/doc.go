// Package node is the engine's side of sandboxes: their images, their containers, the connection to the agent in each, and
// the deadlines that agents know. A Node is the worker's Docker engine; every other package of the worker builds on it.
//
// A container carries its sandbox's record, for a Redis that loses it (see LabelRecord).
package node
