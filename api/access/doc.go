// Package access decides who a caller is and whether a request is let in: API keys (Keys), sessions of browsers (Sessions), tokens that the farm
// signs (Signer), and the quotas of requests and connections (Gate). It knows no routes.
package access
