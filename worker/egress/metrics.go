package egress

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/internal/egressproxy"
)

type metrics struct {
	connections *prometheus.CounterVec
	bytes       *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{
		connections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_egress_connections_total", Help: "Connections to hosts that sandboxes asked for, by verdict: allowed, denied or failed.",
		}, []string{"verdict"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandfarm_egress_bytes_total", Help: "Bytes of connections that have ended, by direction: sent (by sandboxes) or received.",
		}, []string{"direction"}),
	}
	for _, v := range []egressproxy.Verdict{egressproxy.Allowed, egressproxy.Denied, egressproxy.Failed} {
		m.connections.WithLabelValues(string(v))
	}
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.connections, m.bytes}
}

func (m *metrics) count(c egressproxy.Connection) {
	m.connections.WithLabelValues(string(c.Verdict)).Inc()
	m.bytes.WithLabelValues("sent").Add(float64(c.Sent))
	m.bytes.WithLabelValues("received").Add(float64(c.Received))
}
