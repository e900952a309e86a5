package placement

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Words of worker.pool that are not images.
const (
	poolAuto = "auto"
	poolNone = "none"
)

// maxPool bounds the members of one image on one node.
const maxPool = 1000

// poolImage is the name of an image in worker.pool.
var poolImage = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// poolTargets reads worker.pool: how many members each image should have; none if the number is chosen (isAuto).
func (c Config) poolTargets() (map[string]int, error) {
	targets := map[string]int{}
	var errs []error
	for _, entry := range c.Pool {
		if entry == poolAuto || entry == poolNone {
			if len(c.Pool) > 1 {
				errs = append(errs, fmt.Errorf("worker.pool contains %q with other entries; use it alone", entry))
			}
			continue
		}
		name, text, _ := strings.Cut(entry, "=")
		count, err := strconv.Atoi(text)
		_, twice := targets[name]
		switch {
		case err != nil || !poolImage.MatchString(name) || count < 0 || count > maxPool:
			errs = append(errs, fmt.Errorf("worker.pool contains %q; write the name of an image and a number from 0 to %d, as python=2, or auto or none", entry, maxPool))
		case twice:
			errs = append(errs, fmt.Errorf("worker.pool names the image %s twice", name))
		default:
			targets[name] = count
		}
	}
	return targets, errors.Join(errs...)
}
