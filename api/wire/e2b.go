package wire

import "encoding/hex"

// E2BPrefix begins the only form of keys that the SDKs of E2B took before November 2026.
const E2BPrefix = "e2b_"

// E2BKey is an API key in that form: the same key, its bytes in hex. The farm takes both.
func E2BKey(secret string) string { return E2BPrefix + hex.EncodeToString([]byte(secret)) }
