// Command bench compares a farm with the components that it consists of, both in the same run, and prints a table. It starts its own
// farm (bin/sandfarm) in a temporary directory and removes it afterwards.
//
//	make bench                         everything, as a Markdown table
//	go run ./bench -only print,stdout  some of it
//
// Installs need the Python index, and python3 with pip to compare with.
//
// Its results are recorded in docs/benchmarks.md with the date and the machine.
package main
