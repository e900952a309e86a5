package faulttest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Sample is what a farm holds at one moment, by what is measured: "memory of api" in MiB, "goroutines of worker", "descriptors of
// scheduler", "keys", "memory of redis", "containers", "files" in MiB.
type Sample struct {
	At     time.Time
	Values map[string]float64
}

// Measure measures the farm. It needs Config.Links.
func (f *Farm) Measure() (Sample, error) {
	s := Sample{At: time.Now(), Values: map[string]float64{}}
	for kind, u := range f.using() {
		s.Values["goroutines of "+kind], s.Values["descriptors of "+kind] = float64(u.goroutines), float64(u.descriptors)
	}
	for name := range f.links {
		if !f.Alive(name) {
			continue
		}
		resident, err := f.resident(name)
		if err != nil {
			return s, err
		}
		s.Values["memory of "+kindOf(name)] = max(s.Values["memory of "+kindOf(name)], resident)
	}
	keys, err := f.redis.DBSize(f.t.Context()).Result()
	if err != nil {
		return s, fmt.Errorf("count keys: %w", err)
	}
	info, err := f.redis.InfoMap(f.t.Context(), "memory").Result()
	if err != nil {
		return s, fmt.Errorf("read memory of Redis: %w", err)
	}
	used, err := strconv.ParseFloat(info["Memory"]["used_memory"], 64)
	if err != nil {
		return s, fmt.Errorf("read memory of Redis: %w", err)
	}
	files, err := size(f.Stored())
	s.Values["keys"], s.Values["memory of redis"], s.Values["containers"], s.Values["files"] = float64(keys), used/(1<<20), float64(len(f.Containers())), files
	return s, err
}

// resident is the memory of a process in MiB.
func (f *Farm) resident(name string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", f.PID(name)))
	if err != nil {
		return 0, fmt.Errorf("measure %s: %w", name, err)
	}
	pages, err := strconv.ParseFloat(strings.Fields(string(text))[1], 64)
	return pages * float64(os.Getpagesize()) / (1 << 20), err
}

// size is what the files below a directory have, in MiB. Files that disappear meanwhile do not count.
func size(dir string) (float64, error) {
	var bytes int64
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	return float64(bytes) / (1 << 20), err
}

// Growth fits a line to the second half of some samples, and returns by how much each value grew over that half, and its mean there.
func Growth(samples []Sample, name string) (growth, mean float64) {
	half := samples[len(samples)/2:]
	first, last := half[0].At, half[len(half)-1].At
	var n, sumT, sumV, sumTT, sumTV float64
	for _, s := range half {
		t, v := s.At.Sub(first).Seconds(), s.Values[name]
		n, sumT, sumV, sumTT, sumTV = n+1, sumT+t, sumV+v, sumTT+t*t, sumTV+t*v
	}
	mean = sumV / n
	if spread := n*sumTT - sumT*sumT; spread > 0 {
		growth = (n*sumTV - sumT*sumV) / spread * last.Sub(first).Seconds()
	}
	return growth, mean
}

// Report prints a line, and adds it to the file that SANDFARM_TEST_REPORT names.
func (f *Farm) Report(line string) { report(f.t, line) }
