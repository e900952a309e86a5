package blob

import (
	"context"
	"fmt"
	"mime"
	"net/url"
	"path"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sandfarm/sandfarm/internal/farm"
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

// Presign makes a link with which anybody may GET the object until it expires. It asks the service nothing: the object need not exist.
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
	if err := s.sign(ctx, key, opts.Expiry, params); err != nil {
		return "", err
	}
	link, err := s.public.PresignedGetObject(ctx, s.cfg.Bucket, key, opts.Expiry, params)
	if err != nil {
		return "", toFarm(ctx, err, "presign object")
	}
	return link.String(), nil
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
