package mcp

// addTools registers every tool.
func (s *Server) addTools() {}
