package index

import "sync/atomic"

// Stats are the counters of an Index.
type Stats struct {
	Requests         int64 // including rejected ones
	Hits             int64 // pages and files served without upstream
	Coalesced        int64 // requests that joined another one for the same thing
	UpstreamRequests int64 // HTTP requests to upstream; redirects are not counted
	UpstreamFiles    int64 // started downloads of files
	UpstreamBytes    int64 // bytes of bodies
	CacheErrors      int64 // failed calls of the cache
	Trimmed          int64 // values that Trim removed
}

// counters are the live counters behind Stats.
type counters struct {
	requests, hits, coalesced, upstreamRequests, upstreamFiles, upstreamBytes, cacheErrors, trimmed atomic.Int64
}

// Stats returns the current counters.
func (x *Index) Stats() Stats {
	c := &x.count
	return Stats{
		Requests: c.requests.Load(), Hits: c.hits.Load(), Coalesced: c.coalesced.Load(),
		UpstreamRequests: c.upstreamRequests.Load(), UpstreamFiles: c.upstreamFiles.Load(), UpstreamBytes: c.upstreamBytes.Load(),
		CacheErrors: c.cacheErrors.Load(), Trimmed: c.trimmed.Load(),
	}
}
