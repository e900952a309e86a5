package blob

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

const (
	// downloads are how many links are read at a time, half of those that others leave for one tenant: each may take a MiB of a MinIO's memory for as long
	// as its reader is slow. As many wait for a place; what is beyond that is refused.
	downloads = 128
	// maxLinkQuery and maxLinkParameters bound the query of a link, before it is read: Presign makes ten parameters, of up to some 3 KiB.
	maxLinkQuery      = 8 << 10
	maxLinkParameters = 16
	// downloadBytes is what a download counts beside its bytes: the service works for it, however small it is.
	downloadBytes = 512 << 10
)

// downloadHeaders are the headers of a download that the service gets.
func downloadHeaders() []string {
	return []string{
		"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since",
		"Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers",
	}
}

// Links bounds what downloads by links take of a service and of a server, which know no tenants: a tenant's downloads have half of the places that others
// leave, and a pace of their own. Its methods may be called concurrently.
type Links struct {
	admitted, places *budget.Places
	perSecond, burst int // bytes of a tenant

	mu    sync.Mutex
	paces map[string]*rate.Limiter // by tenant: those of which there was a link
}

// NewLinks makes a Links. perSecond is how many bytes each tenant reads in a second, and burst how many at once: 64 KiB at least.
func NewLinks(perSecond, burst int) *Links {
	return &Links{
		admitted: budget.NewPlaces(2 * downloads), places: budget.NewPlaces(downloads), perSecond: perSecond, burst: burst, paces: map[string]*rate.Limiter{},
	}
}

// pace is the limiter of a tenant's bytes.
func (l *Links) pace(tenant string) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paces[tenant] == nil {
		l.paces[tenant] = rate.NewLimiter(rate.Limit(l.perSecond), l.burst)
	}
	return l.paces[tenant]
}

// Admit waits until the object, which a link is of, may be read. Not ok: it may not, and w has the answer. Else leave must be called when it was read. r is of a
// server of package httpserver.
func (l *Links) Admit(w http.ResponseWriter, r *http.Request, key string) (leave func(), ok bool) {
	return l.admit(w, r, tenantOf(key))
}

func (l *Links) admit(w http.ResponseWriter, r *http.Request, tenant string) (leave func(), ok bool) {
	ctx := r.Context()
	admission := l.admitted.Ask(tenant)
	select {
	case <-admission.Granted():
	default:
		admission.Leave()
		w.Header().Set("Retry-After", "5")
		http.Error(w, "Too many files of this tenant are read now. Try again in a moment.", http.StatusServiceUnavailable)
		return nil, false
	}
	place := l.places.Ask(tenant)
	leave = func() { place.Leave(); admission.Leave() }
	select {
	case <-place.Granted():
	case <-ctx.Done():
		leave()
		http.Error(w, "The request was ended.", http.StatusServiceUnavailable)
		return nil, false
	}
	httpserver.Known(ctx, tenant, l.pace(tenant))
	httpserver.Spend(ctx, downloadBytes)
	httpserver.Pay(ctx)
	return leave, true
}

// Tokens makes tokens that say something, and opens those that this farm has made (see api/access.Signer). An error of Open is CodeUnavailable where it
// cannot tell.
type Tokens interface {
	Seal(ctx context.Context, parts ...string) (string, error)
	Open(ctx context.Context, token string) ([]string, error)
}

const (
	// tokenParameter has the token of a link. S3 services ignore parameters that begin with x-, and the signature covers them.
	tokenParameter = "x-sandfarm"
	// tokenVersion is the first part of what the token says; the others are the tenant and the end of the link, in seconds since 1970.
	tokenVersion = "download1"
)

// sign adds the token with which Downloads knows whose link it is, whichever credentials of the service have signed it.
func (s *Store) sign(ctx context.Context, key string, life time.Duration, params url.Values) error {
	tenant := tenantOf(key)
	if s.cfg.Tokens == nil || tenant == "" {
		return nil
	}
	token, err := s.cfg.Tokens.Seal(ctx, tokenVersion, tenant, strconv.FormatInt(time.Now().Add(life).Unix(), 10))
	params.Set(tokenParameter, token)
	return err
}

// Downloads passes downloads by links (see Presign) on to the service, and nothing else, so that callers need not reach it. Links of Presign without
// Config.Tokens are refused.
func (s *Store) Downloads(links *Links) http.Handler {
	proxy, objects := s.downloadProxy(), "/"+s.cfg.Bucket+"/"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions {
			http.Error(w, "Only downloads are possible here.", http.StatusMethodNotAllowed)
			return
		}
		if r.ContentLength != 0 {
			http.Error(w, "A download has no body.", http.StatusBadRequest)
			return
		}
		tenant, err := s.linkTenant(r)
		switch {
		case err != nil:
			w.Header().Set("Retry-After", "5")
			http.Error(w, "The farm cannot check links now. Try again in a moment.", http.StatusServiceUnavailable)
		case tenant == "" || !strings.HasPrefix(r.URL.Path, objects):
			http.Error(w, "This is no link of the farm, or it has expired.", http.StatusForbidden)
		default:
			if leave, ok := links.admit(w, r, tenant); ok {
				defer leave()
				proxy.ServeHTTP(w, r)
			}
		}
	})
}

// linkTenant is the tenant of the link that a request has, "" if it has none that has not expired. The service checks its signature. An error means that nobody
// knows.
func (s *Store) linkTenant(r *http.Request) (string, error) {
	if s.cfg.Tokens == nil || len(r.URL.RawQuery) > maxLinkQuery || strings.Count(r.URL.RawQuery, "&") >= maxLinkParameters {
		return "", nil
	}
	query := r.URL.Query()
	parts, err := s.cfg.Tokens.Open(r.Context(), query.Get(tokenParameter))
	if err != nil {
		if farm.CodeOf(err) == farm.CodeUnavailable {
			return "", err
		}
		return "", nil
	}
	if len(parts) != 3 || parts[0] != tokenVersion || !query.Has("X-Amz-Signature") {
		return "", nil
	}
	if end, err := strconv.ParseInt(parts[2], 10, 64); err != nil || time.Now().Unix() >= end {
		return "", nil
	}
	return parts[1], nil
}

func (s *Store) downloadProxy() *httputil.ReverseProxy {
	target, _ := parseEndpoint(s.cfg.Endpoint) // New has checked it
	transport := newTransport(s.cfg.StallTimeout)
	transport.ReadBufferSize, transport.WriteBufferSize = 4<<10, 4<<10
	return &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // it is signed
			r.Out.Header = http.Header{}
			for _, name := range downloadHeaders() {
				if values := r.In.Header[name]; len(values) > 0 {
					r.Out.Header[name] = values
				}
			}
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			http.Error(w, "The object store does not answer. Try again in a moment.", http.StatusBadGateway)
		},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // of clients that leave
	}
}
