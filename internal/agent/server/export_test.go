package server

// OpenSessions is how many sessions of workers the server holds for open.
func (s *Server) OpenSessions() int {
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	return len(s.sessions.open)
}
