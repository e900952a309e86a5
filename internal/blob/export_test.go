package blob

// Left is how many bytes a tenant may read at once.
func (l *Links) Left(tenant string) int { return int(l.pace(tenant).Tokens()) }
