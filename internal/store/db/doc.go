// Package db is what the packages of records below package store share: the client of Redis, every key, the scripts, large values in the object store, lists in pages,
// and which tenants there are.
//
// It promises that a script touches one slot, in one step, and that an error of Redis has the code that says whether a retry may succeed.
package db
