package server

import (
	"strconv"
	"testing"
)

func TestTablesOfListeners(t *testing.T) {
	t.Parallel()
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	for name, c := range map[string]struct{ table, want string }{
		"IPv4":           {head + "   0: 0100007F:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0\n", "127.0.0.1:8888 4711"},
		"All of IPv6":    {head + "   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 12 1\n", ":::8080 12"},
		"Loopback of it": {head + "   0: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 13 1\n", "::1:80 13"},
		"Connected":      {head + "   0: 0100007F:22B8 0100007F:0001 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0\n", ""},
		"Nonsense":       {"a b c 0A d e f g h i\nx: 0100:1 2 0A 4 5 6 7 8 9\n 0: zz:22B8 0 0A 0 0 0 0 0 9\n", ""},
		"Nothing":        {"", ""},
	} {
		got := ""
		for _, l := range listeners([]byte(c.table)) {
			got += l.address.String() + ":" + strconv.Itoa(l.port) + " " + l.inode
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
