// Package fuzz holds the script that runs one fuzz target for `make fuzz`.
package fuzz
