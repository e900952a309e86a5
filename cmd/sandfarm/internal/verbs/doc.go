// Package verbs has the commands of the program that talk to a farm: run, sandbox, files, packages, job, artifact, image,
// workers, queues, events, top, key and audit. They use only the public client, so your own program can do whatever they do.
//
// Add adds them to a root command. Exit turns the error of a command into one sentence and an exit code. The package reads
// neither the environment nor the terminal directly: both come with Streams.
package verbs
