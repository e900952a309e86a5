// Package index proxies a Python package index and an npm registry over plain HTTP. Sandboxes have no network and
// reach it over their agent's stream; image builds reach it on this host's loopback, since a container does not trust the
// host's certificate authorities.
//
// It answers GET and HEAD of project pages and of the files that those pages list, and nothing else. It fetches from the
// configured hosts alone, whatever a page or a redirect says. Responses are cached: pages for PageAge, after which
// they are revalidated; files under their hash, until Trim removes them. Concurrent requests for the same thing become one request
// upstream.
//
// A file's hash is verified during its download. The last byte is passed on only if the hash is right, so no caller ever gets a
// complete file that is not the one listed. Without its cache the index still works: everything then comes from upstream.
package index
