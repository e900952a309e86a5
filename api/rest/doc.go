// Package rest is the HTTP plumbing that every route of the server shares: it reads bodies and queries, writes answers,
// problems, files and event streams, has the middleware, and says what a route is (Route). Each read and write of a connection has its own deadline, so
// bodies and answers may be of any length, but a stalled caller is disconnected. The package depends on gin and the
// domain's errors, and on no route.
package rest
