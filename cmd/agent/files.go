package main

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/sandfarm/sandfarm/internal/agent"
	"github.com/sandfarm/sandfarm/internal/agent/files"
)

// runFiles serves files to the agent. It uses the sandbox's memory, so it is small.
func runFiles() error {
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryGoal)
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), maxProcs))
	file := os.NewFile(agent.FilesFD, "agent")
	conn, err := net.FileConn(file)
	if err != nil {
		return fmt.Errorf("take the agent's connection: %w", err)
	}
	_ = file.Close()
	return files.Serve(conn)
}
