// Package abusetest shows that one caller cannot take the farm from the others. It runs a farm of processes (package faulttest) whose API
// and worker have 256 MiB of memory each, does what a careless or hostile caller would do, and calls the farm for a second tenant, the
// neighbour, at the same time.
//
// For each kind of abuse it prints one line: the bytes that Redis and the object store grew by, the resident memory of the API and of the
// worker before, at most and after, and the 95th percentile of the neighbour's print(1), quiet and beside the abuse. The tests compare
// bytes and counts with limits; times are printed only. They run by `make test-abuse`, and ten times over by `make test-abuse-all`.
package abusetest
