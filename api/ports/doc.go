// Package ports passes HTTP requests on to servers that listen in sandboxes, and their answers back. It owns what must not pass: the farm's
// keys and cookies on the way in, and on the way out what would act on the farm's own origin, since the code of a sandbox writes the answers.
// It knows neither keys nor records: its caller has found out who asks, and gives it a connection to the port.
package ports
