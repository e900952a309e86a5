package api

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/internal/scale"
)

// scaleCollector reads what GET /v1/scale says when it is scraped. Its labels are bounded by the GPU models of the farm.
type scaleCollector struct {
	needs                                  func(context.Context) ([]scale.Need, error)
	nodes, wanted, idle, draining, failing *prometheus.Desc
	waiting, unfit                         *prometheus.Desc
}

func newScaleCollector(needs func(context.Context) ([]scale.Need, error)) *scaleCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("sandfarm_scale_"+name, help, []string{"kind", "model"}, nil)
	}
	return &scaleCollector{
		needs:    needs,
		nodes:    desc("nodes", "Nodes that take new sandboxes, by kind and GPU model."),
		wanted:   desc("nodes_wanted", "Nodes that would take everything that waits, without those that are idle."),
		idle:     desc("nodes_idle", "Nodes that could be removed."),
		draining: desc("nodes_draining", "Nodes that are drained."),
		failing:  desc("nodes_failing", "Nodes whose workers accept no jobs."),
		waiting:  desc("creates_waiting", "Creates that have waited for at least 5 seconds."),
		unfit:    desc("creates_unfit", "Of those, the ones that no node of the kind could take even if it were empty."),
	}
}

// Describe is part of prometheus.Collector.
func (s *scaleCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.nodes, s.wanted, s.idle, s.draining, s.failing, s.waiting, s.unfit} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector. It has no metrics while Redis does not answer.
func (s *scaleCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout) //nolint:forbidigo // the interface has no context
	defer cancel()
	needs, err := s.needs(ctx)
	if err != nil {
		return
	}
	for _, n := range needs {
		for d, v := range map[*prometheus.Desc]int{
			s.nodes: n.Nodes, s.wanted: n.Wanted, s.idle: len(n.Idle), s.draining: n.Draining, s.failing: n.Failing, s.waiting: n.Waiting, s.unfit: n.Unfit,
		} {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), service.KindName(n.Kind), n.Kind.Model)
		}
	}
}
