// Package api is the farm's HTTP server. It owns the routes: their table, their handlers, who may call them, metrics, the
// OpenAPI document and its page. What routes do is in package service, what bodies look like in package wire, and what all
// handlers share in package rest. The table of routes is the single source of the router and of /openapi.json, so that a
// route cannot be missing in one of them. The server has no state: any number of them may run behind one address.
package api
