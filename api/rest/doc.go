// Package rest is the HTTP plumbing that every route of the server shares: it reads bodies and queries, writes answers,
// problems, files and event streams, and has the middleware. Reads and writes of a connection have a deadline for each step,
// so a body or an answer of any length passes and a caller that stands still does not. It knows gin and the domain's errors;
// it does not know any route, nor what the routes do.
package rest
