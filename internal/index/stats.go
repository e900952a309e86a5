package index

import "sync/atomic"

// Stats counts what an Index did since it was made.
type Stats struct {
	Requests         int64 // answered, refused ones included
	Hits             int64 // pages and files that needed nothing of upstream
	Coalesced        int64 // requests that joined one for the same thing
	UpstreamRequests int64 // HTTP requests upstream, redirects not counted apart
	UpstreamFiles    int64 // downloads of files that were begun
	UpstreamBytes    int64 // bytes of bodies
	CacheErrors      int64 // calls of the cache that went wrong
	Trimmed          int64 // values that Trim removed
}

// counters are Stats that are being counted.
type counters struct {
	requests, hits, coalesced, upstreamRequests, upstreamFiles, upstreamBytes, cacheErrors, trimmed atomic.Int64
}

// Stats gives the counters as they are now.
func (x *Index) Stats() Stats {
	c := &x.count
	return Stats{
		Requests: c.requests.Load(), Hits: c.hits.Load(), Coalesced: c.coalesced.Load(),
		UpstreamRequests: c.upstreamRequests.Load(), UpstreamFiles: c.upstreamFiles.Load(), UpstreamBytes: c.upstreamBytes.Load(),
		CacheErrors: c.cacheErrors.Load(), Trimmed: c.trimmed.Load(),
	}
}
