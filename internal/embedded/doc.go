// Package embedded runs what the farm needs beside it: an S3 service in this process, and a Redis server as a child.
//
// It is for one machine: the program's "up" command starts both and keeps their data in one folder, so that jobs and
// artifacts survive a restart. A larger farm points at services of its own, and uses nothing of this package.
package embedded
