// Package verbs holds the commands of the program that speak to a farm: run, sandbox, files, packages, job, artifact, images,
// workers and queues. They use the public client and nothing else of the farm, so whatever they can do, a program of
// yours can do as well.
//
// Add puts them on a root command, Exit turns the error of a command into one sentence and an exit code. The package
// reads no environment and no terminal of its own: both come with Streams.
package verbs
