// Package secret seals the secrets of sandboxes for the time that they are stored, and has the authority of certificates that each sandbox
// with secrets trusts. What is sealed can be opened for the same sandbox only, by a process with one of the farm's keys.
package secret
