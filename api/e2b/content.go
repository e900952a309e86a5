package e2b

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/time/rate"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/api/service"
	"github.com/sandfarm/sandfarm/api/wire"
	"github.com/sandfarm/sandfarm/internal/budget"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// maxUploads is how many files one upload has. Each is a call to the sandbox, see callsPerRequest.
const maxUploads = 1000

// metadataPrefix begins the headers with metadata of the files of an upload. Keys are what follows it, in lower case.
const metadataPrefix = "X-Metadata-"

// uploaded is one entry of the answer to an upload.
type uploaded struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Type string `json:"type"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

// Download answers with a file, or the part that the Range header asks for.
func (d *Gateway) Download(c *gin.Context, box Box) error {
	if err := checkUser(c.Query("username")); err != nil {
		return err
	}
	status := http.StatusOK
	at := placeOf(c.Query("path"))
	content, part, err := d.Service.ReadFS(c.Request.Context(), box.Tenant, box.ID, at.real, func(e wire.FSEntry) (service.Range, error) {
		offset, length, partial, err := rest.Part(c, e.Size, e.ETag)
		if partial {
			status = http.StatusPartialContent
		}
		return service.Range{Offset: offset, Length: length}, err
	})
	if err != nil {
		return fileError(err)
	}
	defer content.Close()
	rest.FileHeaders(c, wire.FileEntry{Path: content.Entry.Path, ModifiedAt: content.Entry.ModifiedAt}, "inline")
	if status == http.StatusPartialContent {
		c.Header("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.Offset, part.Offset+part.Length-1, content.Entry.Size))
		return rest.SendContent(c, status, content, part.Length)
	}
	return rest.SendWhole(c, content, part.Length)
}

// fileError is an error of a file as envd answers with it: 507 if there is no space.
func fileError(err error) error {
	if farm.CodeOf(err) == farm.CodeTooLarge {
		return rest.Refusef(http.StatusInsufficientStorage, farm.CodeTooLarge, "%s", farm.MessageOf(err))
	}
	return err
}

// Upload writes files: one from the body as it is, or those of a multipart body, whose names are their paths unless the query has one.
func (d *Gateway) Upload(c *gin.Context, box Box) error {
	if err := checkUser(c.Query("username")); err != nil {
		return err
	}
	metadata := map[string]string{}
	for name, values := range c.Request.Header {
		if key, ok := strings.CutPrefix(name, metadataPrefix); ok {
			metadata[strings.ToLower(key)] = strings.Join(values, ", ")
		}
	}
	if err := farm.CheckMetadata(metadata); err != nil {
		return err
	}
	kind, params, err := rest.MediaType(c)
	if err != nil {
		return err
	}
	body, size, err := rest.Unpacked(c, rest.Body(c))
	if err != nil {
		return err
	}
	u := &upload{Gateway: d, c: c, box: box, metadata: metadata, seen: map[string]bool{}, out: []uploaded{}}
	switch {
	case kind == "multipart/form-data" && params["boundary"] != "":
		err = parts(rest.NewParts(c.Request.Context(), body, params["boundary"]), c.Query("path"), u.write)
	case kind == "application/octet-stream" && c.Query("path") == "":
		return rest.BadRequestf("path is missing: where the body is written.")
	case kind == "application/octet-stream":
		err = u.write(c.Query("path"), body, size)
	default:
		return rest.BadRequestf("the Content-Type must be multipart/form-data or application/octet-stream")
	}
	if err != nil {
		rest.DiscardShort(c)
		return fileError(err)
	}
	return rest.Reply(c, http.StatusOK, u.out)
}

// upload is one upload.
type upload struct {
	*Gateway
	c        *gin.Context
	box      Box
	metadata map[string]string // of each file
	seen     map[string]bool
	out      []uploaded
	held     budget.Gathered // seen and out
}

// parts writes the parts named "file" of a multipart body as they come, where at says or, if it is empty, where their names say.
func parts(r *rest.Parts, at string, write func(to string, content io.Reader, size int64) error) error {
	for files := 0; ; {
		part, err := r.NextRawPart()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return rest.BadRequestf("the multipart body cannot be read: %s", err)
		case part.FormName() != "file":
			continue
		case files == maxUploads:
			return rest.BadRequestf("an upload has at most %d files", maxUploads)
		}
		to := at
		if to == "" {
			to = filename(part.Header.Get("Content-Disposition"))
		}
		if to == "" {
			return rest.BadRequestf("a part has no filename, and there is no path in the query")
		}
		if err := write(to, part, -1); err != nil {
			return err
		}
		files++
	}
}

// filename is the name of a part, with the directories that multipart.Part leaves out.
func filename(disposition string) string {
	_, params, err := mime.ParseMediaType(disposition)
	if err != nil {
		return ""
	}
	return params["filename"]
}

// write writes one file where it is, so that who watches it sees what envd would show.
func (u *upload) write(to string, content io.Reader, size int64) error {
	at := placeOf(to)
	if u.seen[at.real] {
		return rest.BadRequestf("the upload has %s twice", farm.Shorten(to))
	}
	ctx := u.c.Request.Context()
	if n := len(u.out); n > 0 && n%callsPerRequest == 0 {
		if _, err := u.Gate.More(ctx, u.box.Tenant, 1); err != nil {
			return err
		}
	}
	kept := len(at.real) // to find it again, as the agent names it, and in the answer
	for key, value := range u.metadata {
		kept += len(key) + len(value)
	}
	if err := u.held.Add(ctx, entryBytes+int64(kept)*budget.BodyWeight); err != nil {
		return err
	}
	u.seen[at.real] = true
	written, err := u.Service.WriteFS(ctx, u.box.Tenant, u.box.ID, at.real, farm.FSWrite{How: farm.FSOverwrite, Mode: -1, Metadata: u.metadata}, content, size)
	if err != nil {
		return err
	}
	u.out = append(u.out, uploaded{Name: path.Base(written.Path), Path: at.shown(at.real), Type: "file", Metadata: u.metadata})
	return nil
}

// An SDK signs the URL of a file by itself: with a hash of the path, the operation, the user and the access token. The URL has no token, and
// names the sandbox only if its host does. Then only the access tokens of that sandbox are tried. Otherwise the farm makes those of all that are
// open, one after the other, and looks whose it is: anyone may ask for that, so for an address so many tokens are tried, and only what has the form of
// a signature is searched for.

const (
	signatureForm = "v1_"
	// maxSigners is how many tokens are tried for one URL: on a busy core 0.2 s, with the longest path 0.8 s.
	maxSigners = 20_000
	// maxSearching is how many searches there are at once, with those that wait for their turn: nobody takes the connection of a request that waits for the
	// farm. An address has at most half of those that others leave.
	maxSearching = 16
	// signerRate is how many tokens are tried for an address in a second, and signerBurst how many at once at first. All users behind a proxy have one
	// address.
	signerRate, signerBurst = 5 * maxSigners, 50 * maxSigners
	// searchCost is how many tokens a search counts for at least: it lists what is open.
	searchCost = maxSigners / 20
	// maxAddresses is of how many addresses the searches are counted.
	maxAddresses = 4096
)

// searches limits the search for the sandboxes of signed URLs that name none: one at a time, few that wait, and so many tokens for each address.
type searches struct {
	places *budget.Places // by address
	turn   chan struct{}

	mu sync.Mutex
	of map[string]*rate.Limiter // by address
}

func newSearches() *searches {
	return &searches{places: budget.NewPlaces(maxSearching), turn: make(chan struct{}, 1), of: map[string]*rate.Limiter{}}
}

// limit is that of an address, in tokens that are tried.
func (s *searches) limit(address string) *rate.Limiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[address] == nil {
		if len(s.of) >= maxAddresses {
			clear(s.of)
		}
		s.of[address] = rate.NewLimiter(signerRate, signerBurst)
	}
	return s.of[address]
}

// listPause is the time between two lists of what is open for sandboxes that are named and not known: anyone may name one.
const listPause = 250 * time.Millisecond

// owner finds the tenant of a sandbox. What is not known is looked for in a list of all that is open, which all who ask share. A sandbox that has ended
// since the list is found, too.
func (d *Gateway) owner(ctx context.Context, id string) (tenant string, err error) {
	if !farm.ValidID(farm.SandboxPrefix, id) {
		return "", errSignature()
	}
	lists := func(of map[string]string, _ time.Duration) bool { return of[id] != "" }
	of, err := d.owners.Get(ctx, d.Now(), lists, func(ctx context.Context) (map[string]string, error) {
		open, err := d.Opened(ctx)
		of := make(map[string]string, len(open))
		for _, ref := range open {
			of[ref.ID] = ref.Tenant
		}
		return of, err
	})
	if err == nil && of[id] == "" {
		err = errSignature()
	}
	return of[id], err
}

// sender is the address that a request comes from; of IPv6 the network, since a sender has all of its addresses.
func sender(r *http.Request) string {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	address := from.Addr().Unmap().WithZone("")
	if network, err := address.Prefix(64); err == nil && address.Is6() {
		return network.String()
	}
	return address.String()
}

// signedURL is what a signed URL says.
type signedURL struct {
	signature []byte
	text      [2]string // what is hashed before and after the token
}

// maxSignedBytes bounds what is hashed for each token beside the path: the user and the expiration.
const maxSignedBytes = 256

// urlOf reads a signed URL; ok is false for a request that has none.
func (d *Gateway) urlOf(r *http.Request) (u signedURL, ok bool, err error) {
	// The parameters are in the path's own query: a form in the body signs nothing.
	q, _ := url.ParseQuery(r.URL.RawQuery) // what cannot be read is not signed
	signature, ok := strings.CutPrefix(q.Get("signature"), signatureForm)
	if !ok || r.URL.Path != "/files" && r.URL.Path != Base+"/files" {
		return u, false, nil
	}
	operation := "read"
	if r.Method == http.MethodPost {
		operation = "write"
	}
	at, user, until := q.Get("path"), q.Get("username"), q.Get("signature_expiration")
	sum, err := base64.RawStdEncoding.Strict().DecodeString(signature)
	if err != nil || len(sum) != sha256.Size || len(at) > farm.MaxPathBytes || len(user)+len(until) > maxSignedBytes {
		return u, true, errSignature()
	}
	u = signedURL{signature: sum, text: [2]string{at + ":" + operation + ":" + user + ":", ""}}
	if until != "" {
		end, err := strconv.ParseInt(until, 10, 64)
		if err != nil {
			return u, true, farm.Errorf(farm.CodeUnauthorized, "signature_expiration is not a number of seconds since 1970.")
		}
		if d.Now().Unix() > end {
			return u, true, farm.Errorf(farm.CodeUnauthorized, "signature is already expired")
		}
		u.text[1] = ":" + until
	}
	return u, true, nil
}

// by reports whether a token signed the URL.
func (u signedURL) by(token string) bool {
	sum := sha256.Sum256([]byte(u.text[0] + token + u.text[1]))
	return hmac.Equal(sum[:], u.signature)
}

func errSignature() error {
	return farm.Errorf(farm.CodeUnauthorized, "The signature of this URL is not valid, or its sandbox has ended, or the key that made it was revoked.")
}

func errSearches(what string) error {
	return farm.Errorf(farm.CodeExhausted, "Too many signed URLs %s. Try again in a second, or set api.preview_domain: hosts below it name the sandbox.", what)
}

// signer finds the sandbox whose access token signed the URL of a request: the one that its host names, or else among all that are open.
func (d *Gateway) signer(r *http.Request, u signedURL, named string) (Box, error) {
	ctx := r.Context()
	if named != "" {
		tenant, err := d.owner(ctx, named)
		if err != nil {
			return Box{}, err
		}
		box, _, err := d.signerAmong(ctx, u, []farm.Ref{{Tenant: tenant, ID: named}})
		return box, err
	}
	address := sender(r)
	limit := d.searches.limit(address)
	if limit.TokensAt(d.Now()) < 1 {
		return Box{}, errSearches("come from this address")
	}
	place := d.searches.places.Ask(address)
	defer place.Leave()
	select {
	case <-place.Granted():
	default:
		return Box{}, errSearches("wait for their search")
	}
	select {
	case d.searches.turn <- struct{}{}:
		defer func() { <-d.searches.turn }()
	case <-ctx.Done():
		return Box{}, ctx.Err()
	}
	tried := 0
	defer func() { limit.ReserveN(d.Now(), max(tried, searchCost)) }()
	open, err := d.Opened(ctx)
	if err != nil {
		return Box{}, err
	}
	box, tried, err := d.signerAmong(ctx, u, open)
	return box, err
}

// signerAmong also counts the tokens that it has tried.
func (d *Gateway) signerAmong(ctx context.Context, u signedURL, open []farm.Ref) (_ Box, tried int, err error) {
	keys := map[string][]string{}
	for _, ref := range open {
		if _, ok := keys[ref.Tenant]; !ok {
			if keys[ref.Tenant], err = d.Keys(ctx, ref.Tenant); err != nil {
				return Box{}, tried, err
			}
		}
		for _, key := range keys[ref.Tenant] {
			if tried++; tried > maxSigners {
				return Box{}, tried, farm.Errorf(farm.CodeUnauthorized, "The farm has too many sandboxes and keys to find whose this URL is. With api.preview_domain its host says so.")
			}
			box := Box{Tenant: ref.Tenant, ID: ref.ID, Key: key}
			token, err := d.token(ctx, accessToken, box)
			if err != nil {
				return Box{}, tried, err
			}
			if u.by(token) {
				return box, tried, nil
			}
		}
	}
	return Box{}, tried, errSignature()
}
