// Package telemetry exposes a process to its operator: the registry of metrics, the server that shows them without a key, the
// metrics of Redis clients, and the export of traces.
//
// Services define their own metrics and register them here. Names begin with sandfarm_, and labels are bounded: no caller,
// sandbox or job can create a series.
package telemetry
