// Package embedded runs what the farm needs beside it: an S3 service in this process, and a Redis server as a child.
//
// It is for one machine: `sandfarm up` starts both and keeps their data in one folder, so jobs and artifacts survive a restart. A
// larger farm uses external services and does not use this package.
package embedded
