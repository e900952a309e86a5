// Package engineproxy is a proxy between workers and a Docker engine. Whoever can use the engine's socket is root on its host; who can use
// only the proxy's can do what a farm does: make, use and remove the sandboxes of one namespace.
//
// It allows the calls in routes.go and no others. Every request is made anew from what was checked: path, query and body of the
// caller never reach the engine. Bodies of calls that create or change something are checked by engine.Checker, which makes them with the functions
// that package engine itself uses. A container is looked up first and used by its id, so that no other can take its name in between. What
// the engine answers about things of other programs is left out.
package engineproxy
