package config

// nearest returns the name that differs from key in at most two letters (one for short keys), or "".
func nearest(key string, names []string) string {
	best, limit := "", 3
	if len(key) < 5 {
		limit = 2
	}
	if len(key) > 100 {
		return ""
	}
	for _, name := range names {
		if d := distance(key, name); d < limit {
			best, limit = name, d
		}
	}
	return best
}

// distance counts the edits (insert, delete, replace) that turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
