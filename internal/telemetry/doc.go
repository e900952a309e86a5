// Package telemetry is what an operator sees of a process from outside: the registry of its metrics, the server that
// shows it where no API does, and the figures of its Redis clients.
//
// Services keep their own figures and register them here. Names begin with sandfarm_, and labels are bounded: no caller,
// sandbox or job can make a series.
package telemetry
