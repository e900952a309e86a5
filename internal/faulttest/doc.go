// Package faulttest runs a whole farm as separate processes of the built program and takes components away from it: kill -9, SIGTERM,
// SIGSTOP, links that are cut or held, calls of Redis at which a process is stopped (Farm.Link), an object store that is away, slow, full or
// answers errors (Farm.S3Link), data that is restored or wiped. Its ledger has the accepted jobs, what their callers were told, and what each
// of them did in its sandbox. After each fault it prints one line: how many accepted jobs were lost, ran twice or were misreported, how many
// had text twice, how many containers were left, and how long a neighbour's job waited. Any number but 0 fails the test; times are printed.
//
// Use it in three steps: New makes a farm, Farm.Case opens the ledger of one fault, Case.End checks it. Farm.End then looks for what all the
// faults left: containers, keys, goroutines, descriptors. The package is for tests; its own tests are `make test-faults`, a sample, and
// `make test-faults-all`, twenty rounds of each kind. Their time limits only find out that something hangs: how fast the farm recovers is for
// `make bench`.
package faulttest
