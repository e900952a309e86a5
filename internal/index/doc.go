// Package index re-serves a Python package index and an npm registry over plain HTTP. Sandboxes have no network and
// reach it over their agent's stream; image builds reach it on this host's loopback, since a container does not trust the
// host's certificate authorities.
//
// It answers GET and HEAD of project pages and of the files that those pages list, and nothing else. It fetches from the
// configured hosts alone, whatever a page or a redirect says. What it read is kept in a Cache: pages until they are
// PageAge old, then they are asked for again; files for good, under their hash, until Trim needs the room. Requests for
// one thing at one time become one request upstream.
//
// A file's hash is checked while it arrives. Its last byte is given on only when the hash is right, so nobody ever holds
// a whole file that is not the one listed. Without its cache the index works on: everything then comes from upstream.
package index
