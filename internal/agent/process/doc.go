// Package process starts and ends the processes of a sandbox: the shells of commands, kernels and installers. It copies their
// output to the log of their execution, reaps every child, and kills the processes of a stopped execution, including those
// that try to escape.
package process
