// Package egressproxy is the worker's side of the network allowlist: an HTTP proxy for the connections of one sandbox.
//
// The requests come from user code. These rules hold for each of them:
//
//   - A host is resolved only after a rule has allowed its name, and only by the worker. So no name that is denied reaches the DNS.
//   - A connection goes to an address that was resolved for it and checked. If one address of a name is not public, the name is refused.
//   - CONNECT carries TLS only, whose ClientHello must name the host of the CONNECT in the clear. Nothing is sent to the host before that.
//   - A plain request, or one inside TLS that the proxy ends, is written anew, with the host of its URL, and has a connection of its own. So the host sees one request, and the
//     rules see the same one.
//   - A host with a secret is asked over TLS only, which the proxy makes or ends itself; the client's own header of the secret's name is
//     dropped, and an answer that repeats the secret is ended before it.
//   - Connections, their rate, their bytes, their idle time and the memory for them are limited.
//   - Each attempt is reported once: when it ends, or when it is refused.
//
// It also tells the addresses of the public Internet from all others, for everything that connects to a host which a caller or user code names.
//
// What the rules cannot see is what a host does with an allowed connection: the name in an encrypted request for a server that serves
// several, and what the owner of a name below a wildcard reads from the labels.
package egressproxy
