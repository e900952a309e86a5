// Package keyring decides who a caller is: it knows the API keys of the settings and those that were made at run time.
//
// A key made or revoked in any process counts here within a second: a Ring looks at the version of the keys before it uses what
// it knows, at most twice a second, and reads them again when it has changed. Nothing is read while there are no requests. While Redis is
// away, the keys that were known stay valid; those of the settings are valid always. A request that lasts is ended when its key
// is revoked or expires.
//
// A farm without keys takes every caller as the operator. It needs keys as soon as one exists, and from then on until it is
// restarted, even if all keys are gone: a Redis that lost its data must not open the farm.
package keyring
