package outbound

import "net/http"

// BesideIndex tells requests to a package index, which are in origin form, from those to a proxy. index may be nil.
func BesideIndex(index, proxy http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodConnect || r.URL.IsAbs():
			proxy.ServeHTTP(w, r)
		case index == nil:
			http.Error(w, "This farm has no package index.", http.StatusNotFound)
		default:
			index.ServeHTTP(w, r)
		}
	})
}
