// Package faulttest runs a whole farm as separate processes of the built program, takes parts of it away in the ways that
// parts go (kill -9, SIGTERM, SIGSTOP, restart), and keeps the books: which jobs were accepted, and what each of them did
// in its sandbox. After each fault it says in one line how many accepted jobs were lost, how many effects were doubled,
// how many containers were left, and how long it took until the system was well again; anything but 0, 0, 0 fails.
//
// A deeper suite grows on it with three things: New makes a farm, Farm.Case opens the books of one fault, Case.End closes
// them. The package is for tests; its own are what `make test-faults` runs.
package faulttest
