package execution

import (
	"mime"
	"net/http"
	"path"
	"strings"
)

// types adds what Go's own table leaves to the host's mime.types, since results must not depend on the host.
var types = map[string]string{
	".csv": "text/csv; charset=utf-8", ".tsv": "text/tab-separated-values; charset=utf-8", ".txt": "text/plain; charset=utf-8",
	".md": "text/markdown; charset=utf-8", ".py": "text/x-python; charset=utf-8", ".log": "text/plain; charset=utf-8",
	".json": "application/json", ".jsonl": "application/jsonl", ".yaml": "application/yaml", ".yml": "application/yaml",
	".toml": "application/toml", ".ipynb": "application/x-ipynb+json", ".parquet": "application/vnd.apache.parquet",
	".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
	".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
	".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
	".zip":  "application/zip", ".gz": "application/gzip", ".tar": "application/x-tar", ".npy": "application/octet-stream",
	".mp4": "video/mp4", ".webm": "video/webm", ".mp3": "audio/mpeg", ".wav": "audio/wav", ".bin": "application/octet-stream",
	".tif": "image/tiff", ".tiff": "image/tiff", ".bmp": "image/bmp",
}

// contentType returns the MIME type of a file by its name, or else by its first bytes; nil: they are unknown.
func contentType(name string, first []byte) string {
	ext := strings.ToLower(path.Ext(name))
	if t, ok := types[ext]; ok {
		return t
	}
	if t := mime.TypeByExtension(ext); t != "" {
		return t
	}
	if first == nil {
		return "application/octet-stream"
	}
	return http.DetectContentType(first)
}

// extensionOf returns the file name extension of a MIME type that kernels display.
func extensionOf(mimeType string) string {
	switch mimeType {
	case "image/png":
		return ".png"
	case "image/jpeg":
		return ".jpg"
	case "image/gif":
		return ".gif"
	case "image/svg+xml":
		return ".svg"
	case "text/html":
		return ".html"
	case "text/plain":
		return ".txt"
	case "application/pdf":
		return ".pdf"
	}
	if strings.HasSuffix(mimeType, "json") {
		return ".json"
	}
	return ".bin"
}
