package faulttest_test

import (
	"math"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/faulttest"
)

// TestGrowthIsOfTheSecondHalf: what a farm needs to warm up does not count as growth.
func TestGrowthIsOfTheSecondHalf(t *testing.T) {
	t.Parallel()
	began := time.Now()
	for _, c := range []struct {
		name   string
		values []float64
		growth float64
	}{
		{"Flat", []float64{0, 50, 100, 100, 100, 100}, 0},
		{"Grows", []float64{0, 0, 0, 10, 20, 30}, 20},
		{"Noise", []float64{5, 5, 5, 10, 0, 10}, 0},
		{"One", []float64{7}, 0},
	} {
		var samples []faulttest.Sample
		for i, v := range c.values {
			samples = append(samples, faulttest.Sample{At: began.Add(time.Duration(i) * time.Second), Values: map[string]float64{"x": v}})
		}
		if growth, _ := faulttest.Growth(samples, "x"); math.Abs(growth-c.growth) > 1e-9 {
			t.Errorf("%s: growth %g, want %g", c.name, growth, c.growth)
		}
	}
}
