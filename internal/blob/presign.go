package blob

import (
	"context"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rclone/gofakes3/signature"
	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/httpserver"
)

// DefaultExpiry is the default life of a link; MaxExpiry is the longest that S3 allows.
const (
	DefaultExpiry = 15 * time.Minute
	MaxExpiry     = 7 * 24 * time.Hour
)

// PresignOptions sets the life of a link and the headers of its response; both are covered by the signature.
type PresignOptions struct {
	// Expiry is from a second to MaxExpiry. 0 means DefaultExpiry.
	Expiry time.Duration
	// Filename, ContentType and Inline are as in PutOptions.
	Filename    string
	ContentType string
	Inline      bool
}

// Presign makes a link with which anybody may GET the object until it expires. It makes no request: the object need not exist.
func (s *Store) Presign(ctx context.Context, key string, opts PresignOptions) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	if opts.Expiry == 0 {
		opts.Expiry = DefaultExpiry
	}
	if opts.Expiry < time.Second || opts.Expiry > MaxExpiry {
		return "", farm.Invalidf("The life of a link must be between one second and seven days.")
	}
	kind := safeType(opts.ContentType)
	params := url.Values{
		"response-content-type":        {kind},
		"response-content-disposition": {disposition(filename(opts.Filename, key), kind, opts.Inline)},
	}
	link, err := s.public.PresignedGetObject(ctx, s.cfg.Bucket, key, opts.Expiry, params)
	if err != nil {
		return "", toFarm(ctx, err, "presign object")
	}
	return link.String(), nil
}

const (
	// downloads are how many links are read at a time, half of those that others leave for one tenant: each may take a MiB of a MinIO's memory for as long
	// as its reader is slow. As many wait for a place; what is beyond that is refused.
	downloads = 128
	// maxLinkQuery and maxLinkParameters bound the query of a link, before its signature is computed: Presign makes nine parameters, of up to some 3 KiB.
	maxLinkQuery      = 8 << 10
	maxLinkParameters = 16
	// linkPace is how many bytes a second are read by the links of a tenant, and four times as many at once; so it is for those of which it is not known.
	linkPace = 64 << 20
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

	mu    sync.Mutex
	paces map[string]*rate.Limiter // by tenant: those of which there was a link
}

// NewLinks makes a Links.
func NewLinks() *Links {
	return &Links{admitted: budget.NewPlaces(2 * downloads), places: budget.NewPlaces(downloads), paces: map[string]*rate.Limiter{}}
}

// pace is the limiter of a tenant's bytes.
func (l *Links) pace(tenant string) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paces[tenant] == nil {
		l.paces[tenant] = rate.NewLimiter(linkPace, 4*linkPace)
	}
	return l.paces[tenant]
}

// Admit waits until the object may be read. Not ok: it may not, and w has the answer. Else leave must be called when it was read. r is of a server of
// package httpserver.
func (l *Links) Admit(w http.ResponseWriter, r *http.Request, key string) (leave func(), ok bool) {
	return l.admit(w, r, tenantOf(key))
}

// admit is Admit for a tenant; "": it is not known.
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
	httpserver.Limit(ctx, l.pace(tenant))
	httpserver.Spend(ctx, downloadBytes)
	httpserver.Pay(ctx)
	return leave, true
}

// Downloads passes downloads by links (see Presign) on to the service, and nothing else, so that callers need not reach it.
func (s *Store) Downloads(links *Links) http.Handler {
	proxy, objects := s.downloadProxy(), "/"+s.cfg.Bucket+"/"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, isObject := strings.CutPrefix(r.URL.Path, objects)
		link, own := s.isLink(r)
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions:
			http.Error(w, "Only downloads are possible here.", http.StatusMethodNotAllowed)
		case !isObject || !link:
			http.Error(w, "This is no link of the farm, or it has expired.", http.StatusForbidden)
		default:
			tenant := ""
			if own {
				tenant = tenantOf(key)
			}
			if leave, ok := links.admit(w, r, tenant); ok {
				defer leave()
				proxy.ServeHTTP(w, r)
			}
		}
	})
}

// isLink reports whether a request may be of a link that has not expired. own: it is of one that was made with the credentials of this store. Links of
// callbacks are made by workers, which may have others: the service checks those, and until then nobody knows whose they are.
func (s *Store) isLink(r *http.Request) (ok, own bool) {
	if len(r.URL.RawQuery) > maxLinkQuery || strings.Count(r.URL.RawQuery, "&") >= maxLinkParameters {
		return false, false
	}
	query := r.URL.Query()
	if !query.Has("X-Amz-Signature") {
		return false, false
	}
	if access, _, _ := strings.Cut(query.Get("X-Amz-Credential"), "/"); access != s.cfg.AccessKey {
		return true, false
	}
	link := r.Clone(r.Context())
	link.Method, link.Header = http.MethodGet, http.Header{} // it may be the preflight of a browser
	own = signature.V4SignVerifyWithLookup(link, func(key string) (string, bool) { return s.cfg.SecretKey, key == s.cfg.AccessKey }) == signature.ErrNone
	return own, own
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
			r.Out.Body, r.Out.ContentLength, r.Out.TransferEncoding = nil, 0, nil
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

const (
	octetStream = "application/octet-stream"
	maxFilename = 200 // bytes; file systems stop at 255, and browsers add " (1)" and ".part"
)

// safeType returns a media type that is safe to serve from our origin: types that a browser would run as a document or a
// script, and malformed ones, become application/octet-stream.
func safeType(text string) string {
	kind, params, err := mime.ParseMediaType(text)
	if err != nil {
		return octetStream
	}
	family, sub, _ := strings.Cut(kind, "/")
	switch family {
	case "text", "application", "image", "audio", "video", "font":
	default:
		return octetStream
	}
	if sub == "" || isActive(sub) {
		return octetStream
	}
	if charset := params["charset"]; family == "text" && isToken(charset) {
		return kind + "; charset=" + charset
	}
	return kind
}

// isActive reports whether a browser may execute a subtype or render it as a document.
func isActive(sub string) bool {
	sub = strings.ToLower(sub)
	for _, word := range []string{"html", "script", "svg", "xsl", "flash"} {
		if strings.Contains(sub, word) {
			return true
		}
	}
	return sub == "xml" || strings.HasSuffix(sub, "+xml") || strings.HasPrefix(sub, "xml-") || strings.HasPrefix(sub, "rdf")
}

func isToken(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '_'
	})
}

// disposition makes the header of RFC 6266: an ASCII name for old clients, followed by the real one.
func disposition(name, kind string, inline bool) string {
	verb := "attachment"
	switch kind {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		if inline {
			verb = "inline"
		}
	}
	return fmt.Sprintf(`%s; filename="%s"; filename*=UTF-8''%s`, verb, asciiName(name), extValue(name))
}

// filename cleans a name that a caller or a sandbox chose: no folders, no control or direction-changing characters, and
// not too long. An empty one becomes the last part of the key.
func filename(name, key string) string {
	name = strings.ToValidUTF8(name, "_")
	name = path.Base(strings.ReplaceAll(name, `\`, "/"))
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, name)
	name = strings.TrimSpace(name)
	if name == "" || name == "." || name == ".." || name == "/" {
		name = path.Base(key)
	}
	return shorten(name)
}

// shorten cuts the middle of a long name, so that its extension stays.
func shorten(name string) string {
	if len(name) <= maxFilename {
		return name
	}
	ext := path.Ext(name)
	if len(ext) > 20 {
		ext = ""
	}
	return strings.ToValidUTF8(name[:maxFilename-len(ext)], "") + ext
}

// asciiName replaces characters that are not allowed between quotes, and the percent sign, which some clients decode.
func asciiName(name string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' || r == '%' {
			return '_'
		}
		return r
	}, name)
}

// extValue encodes a name as RFC 5987 wants: each byte outside attr-char as a percent escape.
func extValue(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$&+-.^_`|~", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}
