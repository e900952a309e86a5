//go:build !unix

package httpserver

import (
	"math"
	"net"
)

// Files is how many files this process may open: any number.
func Files() int64 { return math.MaxInt64 }

// freeBuffer does nothing here.
func freeBuffer(*net.TCPConn) {}

// unread is not known here.
func unread(*net.TCPConn) bool { return false }

// keepUnsent does nothing here.
func keepUnsent(*net.TCPConn, int) {}
