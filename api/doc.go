// Package api is the farm's REST server. It owns the HTTP edge: routes, keys, body limits, strict decoding, problems,
// server-sent events, the OpenAPI document and its page. What the routes do is in package service, what bodies look
// like in package wire. The table in routes.go is the single source of both the router and /openapi.json, so a route
// cannot be missing in one of them. The server is stateless: any number may run behind one address.
package api
