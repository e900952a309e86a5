// Package sshproxy is the SSH server of one sandbox for the one client that started it: "sandfarm ssh-proxy" as a ProxyCommand. Shells and
// commands are processes of the sandbox, sftp is its files, and forwarded ports are its loopback. All of it goes over the farm's API with the
// caller's key. It promises that nothing but the caller's pipe reaches it, and holds no state beyond the connection.
package sshproxy
