package server

// OpenSessions returns the number of open worker sessions.
func (s *Server) OpenSessions() int {
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	return len(s.sessions.open)
}
