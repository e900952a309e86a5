//go:build integration

package main_test

import (
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// strange are the addresses of names below good.test that are not the site's. SITE and VICTIM stand for theirs; of a name with several
// lists each question gets the next one, and the last one stays.
var strange = map[string][]string{
	"victim.good.test":    {"VICTIM"},
	"both.good.test":      {"SITE VICTIM"},
	"rebind.good.test":    {"SITE", "VICTIM"},
	"metadata.good.test":  {"169.254.169.254"},
	"metadata6.good.test": {"fd00:ec2::254"},
	"shared.good.test":    {"100.100.100.200"},
	"loopback.good.test":  {"127.0.0.1"},
	"loopback6.good.test": {"::1"},
	"mapped.good.test":    {"::ffff:VICTIM"},
	"nat64.good.test":     {"64:ff9b::169.254.169.254"},
	"6to4.good.test":      {"2002:a9fe:a9fe::1"},
	"teredo.good.test":    {"2001:0:a9fe:a9fe::1"},
	"zero.good.test":      {"0.0.0.0"},
	"zero6.good.test":     {"::"},
	"link.good.test":      {"fe80::1"},
	"private.good.test":   {"10.0.0.1"},
	"multi.good.test":     {"224.0.0.1"},
}

// serveDNS answers questions until the test ends.
func (n *internet) serveDNS(addr string) error {
	conn, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var question dnsmessage.Message
			if question.Unpack(buf[:size]) != nil || len(question.Questions) != 1 {
				continue
			}
			go func() { // the names of the real Internet take their time
				if answer, err := n.answer(question); err == nil {
					_, _ = conn.WriteTo(answer, from)
				}
			}()
		}
	}()
	return nil
}

// answer answers one question: names of the test by this file, all others as the system does.
func (n *internet) answer(question dnsmessage.Message) ([]byte, error) {
	asked := question.Questions[0]
	name := strings.ToLower(strings.TrimSuffix(asked.Name.String(), "."))
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: question.ID, Response: true, RecursionDesired: true, RecursionAvailable: true},
		Questions: question.Questions,
	}
	head := dnsmessage.ResourceHeader{Name: asked.Name, Class: dnsmessage.ClassINET}
	for _, ip := range n.addresses(name, asked.Type) {
		switch {
		case ip.Is4() && asked.Type == dnsmessage.TypeA:
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: ip.As4()}})
		case ip.Is6() && asked.Type == dnsmessage.TypeAAAA:
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: ip.As16()}})
		}
	}
	return reply.Pack()
}

func (n *internet) addresses(name string, kind dnsmessage.Type) (found []netip.Addr) {
	n.mu.Lock()
	n.asked = append(n.asked, name)
	lists, is := strange[name]
	turn := n.turns[name]
	if kind == dnsmessage.TypeA { // A and AAAA are asked for together
		n.turns[name]++
	}
	n.mu.Unlock()
	switch {
	case is:
	case strings.HasSuffix(name, ".good.test") || strings.HasSuffix(name, ".wide.test"):
		lists, turn = []string{"SITE"}, 0
	case strings.HasSuffix(name, ".test"):
		return nil
	default:
		found, _ = net.DefaultResolver.LookupNetIP(n.t.Context(), "ip", name)
		for i := range found {
			found[i] = found[i].Unmap()
		}
		return found
	}
	text := strings.NewReplacer("SITE", n.site, "VICTIM", n.victim).Replace(lists[min(turn, len(lists)-1)])
	for field := range strings.FieldsSeq(text) {
		found = append(found, netip.MustParseAddr(field))
	}
	return found
}

// questions are the names below test that the DNS was asked for since the last call.
func (n *internet) questions() (names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range n.asked {
		if strings.HasSuffix(name, ".test") {
			names = append(names, name)
		}
	}
	n.asked = nil
	return names
}
