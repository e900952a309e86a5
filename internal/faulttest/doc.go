// Package faulttest runs a whole farm as separate processes of the built program and kills components of it (kill -9, SIGTERM, SIGSTOP,
// restart). Its ledger has the accepted jobs and what each of them did in its sandbox. After each fault it prints one line: how many
// accepted jobs were lost, how many effects happened twice, how many containers were left, and how long the recovery took. Any number
// but 0, 0, 0 fails the test.
//
// Use it in three steps: New makes a farm, Farm.Case opens the ledger of one fault, Case.End checks it. The package is for tests; its own
// tests are `make test-faults`. Their time limits are those that the README guarantees, such as 15 seconds for a takeover.
package faulttest
