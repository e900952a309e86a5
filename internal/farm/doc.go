// Package farm is the domain of Sandfarm: sandboxes, jobs, results, artifacts, their states and limits, ids and error
// codes. It owns the rules (which state may follow which, what a valid name is, what every limit is) and knows nothing
// of Redis, Docker, S3 or HTTP: it imports only the standard library.
package farm
