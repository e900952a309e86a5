package server

// OpenSessions returns the number of open worker sessions.
func (s *Server) OpenSessions() int {
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	return len(s.sessions.open)
}

// SessionAwaited reports whether a stream was asked for since the newest session.
func (s *Server) SessionAwaited() bool {
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	return s.sessions.changed != nil
}
