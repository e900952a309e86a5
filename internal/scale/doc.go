// Package scale says how many nodes a farm needs for the creates that wait. Plan is a pure function of a snapshot of the farm: it places what
// waits into the room that the nodes have, and counts the nodes of each kind that would hold the rest. It adds and removes no node: an
// autoscaler or an operator does.
package scale
