package index

import (
	"net/url"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// wanted is a file that a page lists.
type wanted struct {
	name   string
	from   *upstream
	target *url.URL
	id     string // equal for requests that share one download
	key    string // in the cache; empty: not cached, since its hash is unknown
	size   int64  // 0: unknown

	algorithm, hash string // the expected hash; empty: not verified
}

// want describes a file of a page.
func (u *upstream) want(name, address string, hashes map[string]string, size int64) (wanted, error) {
	target, err := url.Parse(address)
	if err != nil {
		return wanted{}, u.broken(err, "an address of %s that is not valid", name)
	}
	if err := u.allowed(target); err != nil {
		return wanted{}, err
	}
	w := wanted{name: name, from: u, target: target, id: address, size: size}
	if w.algorithm, w.hash = bestHash(hashes); w.hash != "" {
		w.key = farm.IndexPrefix + "file/" + w.algorithm + "/" + w.hash
		w.id = w.key + " " + address
	}
	return w, nil
}

// refusal is a file that is not requested again for a while.
type refusal struct {
	err   error
	until int64 // Unix nanoseconds
}

// mismatch is the error of a file that is not the one listed.
func (w wanted) mismatch(got string) error {
	return farm.Wrap(errMismatch, farm.CodeUnavailable, "The %s gave a file %s whose %s is %s and not %s, as listed: it is refused.",
		w.from.name, w.name, w.algorithm, got, w.hash)
}
