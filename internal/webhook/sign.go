package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"time"
)

// SecretPrefix is the prefix of a formatted secret, before its base64.
const SecretPrefix = "whsec_"

// TenantSecret derives a tenant's signing key from the farm's key, so that one stored secret is enough for all tenants and
// no tenant can sign for another.
func TenantSecret(farmSecret []byte, tenant string) []byte {
	mac := hmac.New(sha256.New, farmSecret)
	_, _ = mac.Write([]byte("sandfarm callback key of tenant " + tenant))
	return mac.Sum(nil)
}

// FormatSecret formats a secret as receivers' libraries expect it.
func FormatSecret(secret []byte) string {
	return SecretPrefix + base64.StdEncoding.EncodeToString(secret)
}

// Sign returns the webhook-signature of a message: "v1," and the base64 of HMAC-SHA256 over "id.timestamp.body".
func Sign(secret []byte, id string, at time.Time, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "%s.%s.", id, strconv.FormatInt(at.Unix(), 10))
	_, _ = mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
