package store

import (
	"slices"
	"sync"
)

const (
	// cachedManifests is how many long manifests a process keeps decoded, for callers that read the artifacts of a job one by one.
	cachedManifests = 4
	// readingManifests is how many long manifests a process reads and decodes at a time.
	readingManifests = 2
)

// manifestCache has the long manifests that were read last. A version of a manifest never changes.
type manifestCache struct {
	reading chan struct{} // a place for each that is being read

	mu   sync.Mutex
	last []*manifest // the one that was used last is at the end
}

func newManifestCache() *manifestCache {
	return &manifestCache{reading: make(chan struct{}, readingManifests)}
}

// get fills in a manifest whose version is known, and reports whether it could.
func (c *manifestCache) get(m *manifest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.index(m)
	if i < 0 {
		return false
	}
	have := c.last[i]
	c.last = append(slices.Delete(c.last, i, i+1), have)
	m.SandboxID, m.Next, m.Entries = have.SandboxID, have.Next, have.Entries
	return true
}

// add keeps a copy of a manifest. Its entries are shared and must not be changed in place.
func (c *manifestCache) add(m *manifest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.index(m) >= 0 {
		return
	}
	kept := *m
	if c.last = append(c.last, &kept); len(c.last) > cachedManifests {
		c.last = slices.Delete(c.last, 0, 1)
	}
}

func (c *manifestCache) index(m *manifest) int {
	return slices.IndexFunc(c.last, func(o *manifest) bool { return o.job == m.job && o.version == m.version })
}
