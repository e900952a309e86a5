// Command agent is PID 1 in every sandbox.
package main

func main() {}
