package output

import (
	"net/http"
	"path"
	"strings"
)

// sniffBytes is how much of a file its media type is judged by.
const sniffBytes = 512

// mediaType judges a file by its first bytes. A name only refines what bytes leave open: calling a page .png does not make
// it a picture.
func mediaType(name string, first []byte) string {
	found := http.DetectContentType(first)
	kind, _, _ := strings.Cut(found, ";")
	named := namedType(name)
	switch {
	case len(first) == 0:
	case kind == "text/plain" && strings.HasPrefix(named, "text/"):
		return named + "; charset=utf-8"
	case kind == "text/plain" && textual(named),
		kind == "text/xml" && strings.HasSuffix(named, "+xml"),
		kind == "application/zip" && strings.HasPrefix(named, "application/vnd."),
		kind == "application/octet-stream" && named == "application/vnd.apache.parquet":
		return named
	}
	return found
}

func textual(kind string) bool { return kind == "application/json" || strings.HasSuffix(kind, "+xml") }

func namedType(name string) string {
	const office = "application/vnd.openxmlformats-officedocument."
	switch strings.ToLower(path.Ext(name)) {
	case ".csv":
		return "text/csv"
	case ".css":
		return "text/css"
	case ".md":
		return "text/markdown"
	case ".htm", ".html":
		return "text/html"
	case ".js", ".mjs":
		return "text/javascript"
	case ".py":
		return "text/x-python"
	case ".tsv":
		return "text/tab-separated-values"
	case ".json", ".ipynb", ".geojson":
		return "application/json"
	case ".svg":
		return "image/svg+xml"
	case ".docx":
		return office + "wordprocessingml.document"
	case ".xlsx":
		return office + "spreadsheetml.sheet"
	case ".pptx":
		return office + "presentationml.presentation"
	case ".parquet":
		return "application/vnd.apache.parquet"
	}
	return ""
}
