// Command bench measures a farm against the parts that it is made of, two things in one run, and prints a table. It
// starts a farm of its own (bin/sandfarm) in a temporary directory, and removes all of it afterwards.
//
//	make bench                         everything, as a Markdown table
//	go run ./bench -only print,stdout  some of it
//
// Installs need the Python index, and python3 with pip to compare with.
//
// What it prints is kept in docs/benchmarks.md with the date and the machine.
package main
