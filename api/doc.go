// Package api is the farm's HTTP server. It owns the routes: their table, their handlers, access control, metrics, the
// OpenAPI document and its page. Package service has the operations, package wire the types of bodies, and package rest
// the code that all handlers share. The router and /openapi.json are both made from the table of routes, so neither can
// miss a route. The server is stateless: any number of servers may run behind one address.
package api
