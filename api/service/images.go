package service

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// offeredFor is how long the list of images is cached. A lookup of an image that is not in it reads the list again at once.
const offeredFor = 2 * time.Second

// offered caches the images that live workers offer.
type offered struct {
	mu     sync.Mutex
	images []farm.Image
	asked  time.Time
}

func (s *Service) offered(ctx context.Context, fresh bool) ([]farm.Image, error) {
	s.images.mu.Lock()
	defer s.images.mu.Unlock()
	if !fresh && s.Now().Sub(s.images.asked) < offeredFor {
		return s.images.images, nil
	}
	images, err := s.Store.OfferedImages(ctx)
	if err != nil {
		return nil, err
	}
	s.images.images, s.images.asked = images, s.Now()
	return images, nil
}

// image finds an offered image. Without a live worker nothing is known about images: then it returns false and no error,
// because the job may wait for a worker. If the live workers have no engine, the error is CodeUnavailable.
func (s *Service) image(ctx context.Context, name string) (farm.Image, bool, error) {
	if !imageName.MatchString(name) {
		return farm.Image{}, false, farm.Invalidf("image %q is not the name of an image (GET /v1/images lists them)", farm.Shorten(name))
	}
	for _, fresh := range []bool{false, true} {
		images, err := s.offered(ctx, fresh)
		if err != nil {
			return farm.Image{}, false, err
		}
		if i := slices.IndexFunc(images, func(i farm.Image) bool { return i.Name == name }); i >= 0 {
			return images[i], true, nil
		}
		if len(images) == 0 && fresh {
			return farm.Image{}, false, s.down(ctx)
		}
	}
	images, _ := s.offered(ctx, false)
	names := make([]string, len(images))
	for i, image := range images {
		names[i] = image.Name
	}
	return farm.Image{}, false, farm.Invalidf("image %q is not offered; there is %s. The operator of the farm adds images (sandfarm image build NAME, docs/images.md)", farm.Shorten(name), strings.Join(names, ", "))
}

// checkLanguage refuses a language that the image is known not to have.
func (s *Service) checkLanguage(ctx context.Context, lang, imageName string) error {
	if !language.MatchString(lang) {
		return farm.Invalidf("language %q is not the name of a language", farm.Shorten(lang))
	}
	image, known, err := s.image(ctx, imageName)
	if err != nil || !known || len(image.Languages) == 0 || slices.Contains(image.Languages, lang) {
		return err
	}
	return farm.Invalidf("image %s does not run the language %q; it runs %s", image.Name, lang, strings.Join(image.Languages, ", "))
}

// speaks reports whether every known image runs the language: then a sandbox's record need not be read to check it.
func (s *Service) speaks(ctx context.Context, lang string) bool {
	images, err := s.offered(ctx, false)
	return err == nil && len(images) > 0 && !slices.ContainsFunc(images, func(i farm.Image) bool { return !slices.Contains(i.Languages, lang) })
}
