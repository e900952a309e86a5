// Package ports serves ports of sandboxes over HTTP: the routes that pass requests on to servers there, links that open a port without a key,
// the hosts that ports have of their own, and the WebSocket that carries any TCP connection. It owns what must not pass: the farm's keys and
// cookies on the way in, and on the way out what would act on the farm's own origin, since the code of a sandbox writes the answers.
//
// Server has the routes (routes.go). Proxy knows neither keys nor records: who calls it has found out who asks, and gives it a connection to the
// port.
package ports
