package server

func (in *install) installNode(wanted []*requirement) map[string]string { return nil }
