package mcp

import "fmt"

// Hints of several tools. Programs in a sandbox can destroy what is in the sandbox, and reach package indexes or what its network allows.
func reads() hints  { return hints{readOnly: true, idempotent: true} }
func runs() hints   { return hints{destructive: true, openWorld: true} }
func brings() hints { return hints{openWorld: true} }

// tools makes every tool. Descriptions say what a tool does, when to use it, its limits, and what to call next.
func (s *Server) tools() []*tool {
	return []*tool{
		s.createSandbox(), listSandboxes(), closeSandbox(),
		executePython(), executeCommand(), getJobResult(), cancelJob(), restartKernel(),
		installPackages(), checkPackage(), checkPackages(),
		s.uploadFile(), listFiles(), s.downloadFile(),
		startProcess(), readProcess(), stopProcess(), getPortURL(),
	}
}

// ToolNames lists the names of the farm's tools.
func ToolNames() []string {
	var names []string
	for _, t := range (&Server{}).tools() {
		names = append(names, t.name)
	}
	return names
}

// addTools registers every tool.
func (s *Server) addTools() error {
	for _, t := range s.tools() {
		if err := s.add(t); err != nil {
			return fmt.Errorf("add tool %s: %w", t.name, err)
		}
	}
	return nil
}
