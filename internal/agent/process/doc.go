// Package process starts and ends the processes of a sandbox: the shells of commands, kernels and installers. It carries their
// output into the log of their execution, reaps every child, and kills what a stopped execution has started, including processes
// that try to escape.
package process
