package blob

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/sandfarm/sandfarm/internal/budget"
)

// Config says which S3 service to use and how.
type Config struct {
	// Endpoint is the URL of the service as this process reaches it, such as "http://127.0.0.1:8001". Required.
	Endpoint string
	// PublicURL is the URL of the same service as callers reach it; presigned links are made for it. "" means Endpoint.
	PublicURL string
	// AccessKey and SecretKey are the credentials. Required.
	AccessKey, SecretKey string
	// Bucket holds all objects. "" means "sandfarm".
	Bucket string
	// Region is what requests are signed for. "" means "us-east-1".
	Region string
	// StallTimeout ends a connection with a pending request on which no byte moves in either direction for this long.
	// 0 means a minute, which gives a server time to assemble a large upload.
	StallTimeout time.Duration
	// Uploads is the budget for the buffers of Put, fair between the tenants in the keys (kind/tenant/…). It must be used for nothing
	// else: who calls Put may hold other memory while it waits for this. nil: without limit.
	Uploads *budget.Budget
}

func (c Config) withDefaults() Config {
	c.PublicURL = cmp.Or(c.PublicURL, c.Endpoint)
	c.Bucket = cmp.Or(c.Bucket, "sandfarm")
	c.Region = cmp.Or(c.Region, "us-east-1")
	c.StallTimeout = cmp.Or(c.StallTimeout, time.Minute)
	return c
}

func (c Config) validate() error {
	var errs []error
	if _, err := parseEndpoint(c.Endpoint); err != nil {
		errs = append(errs, fmt.Errorf("check endpoint: %w", err))
	}
	if _, err := parseEndpoint(c.PublicURL); err != nil {
		errs = append(errs, fmt.Errorf("check public URL: %w", err))
	}
	if c.AccessKey == "" || c.SecretKey == "" {
		errs = append(errs, errors.New("check credentials: access key and secret key are both needed"))
	}
	if c.StallTimeout < 0 {
		errs = append(errs, errors.New("check stall timeout: it is negative"))
	}
	return errors.Join(errs...)
}

// parseEndpoint takes scheme and host only: S3 signatures cover the path, so a service below a path cannot be used.
func parseEndpoint(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("parse URL: %w", err)
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("parse URL %q: the scheme must be http or https", text)
	case u.Host == "":
		return nil, fmt.Errorf("parse URL %q: no host", text)
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil:
		return nil, fmt.Errorf("parse URL %q: only scheme, host and port may be given", text)
	}
	return u, nil
}
