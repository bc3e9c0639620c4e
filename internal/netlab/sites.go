package netlab

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/websocket"
)

// sites is what the web servers have, each host the same but for git.test and index.test.
func (l *Lab) sites() (http.Handler, error) {
	m := http.NewServeMux()
	m.HandleFunc("/", hello)
	m.HandleFunc("/echo", echo)
	m.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", r.FormValue("to"))
		w.WriteHeader(http.StatusFound)
	})
	m.HandleFunc("/status/{code}", func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.PathValue("code"))
		w.WriteHeader(min(max(code, 200), 599))
	})
	m.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		pause(r, duration(r, "ms"))
		hello(w, r)
	})
	m.HandleFunc("/upload", upload)
	m.HandleFunc("/big", generate)
	m.HandleFunc("/sse", events)
	m.HandleFunc("/stream", stream)
	m.HandleFunc("/leak/{how}", leak)
	m.Handle("/ws", websocket.Server{Handler: func(c *websocket.Conn) { _, _ = io.Copy(c, c) }}) // from any origin
	index, err := newIndex()
	if err != nil {
		return nil, err
	}
	repositories, err := l.repositories()
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch host, _, _ := strings.Cut(r.Host, ":"); host {
		case "git.test":
			repositories.ServeHTTP(w, r)
		case "index.test":
			index.ServeHTTP(w, r)
		default:
			m.ServeHTTP(w, r)
		}
	}), nil
}

func hello(w http.ResponseWriter, r *http.Request) {
	host, _, _ := strings.Cut(r.Host, ":")
	if host == "rebind.test" { // so that the next request is another connection
		w.Header().Set("Connection", "close")
	}
	fmt.Fprintf(w, "%s says hello over %s\n", host, r.Proto)
}

// echo answers with the request, as JSON.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"method": r.Method, "host": r.Host, "uri": r.RequestURI, "proto": r.Proto,
		"headers": r.Header, "body": string(body)})
}

func duration(r *http.Request, name string) time.Duration {
	n, _ := strconv.Atoi(r.FormValue(name))
	return time.Duration(n) * time.Millisecond
}

func pause(r *http.Request, d time.Duration) {
	select {
	case <-r.Context().Done():
	case <-time.After(d):
	}
}

// upload answers with the length and hash of what came.
func upload(w http.ResponseWriter, r *http.Request) {
	h := sha256.New()
	n, err := io.Copy(h, r.Body)
	if err != nil {
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"bytes": n, "sha256": hex.EncodeToString(h.Sum(nil))})
}

// generate answers with as many bytes as are asked for; each block says where it is, so that none can be lost or doubled
// unseen.
func generate(w http.ResponseWriter, r *http.Request) {
	left, _ := strconv.ParseInt(r.FormValue("bytes"), 10, 64)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(left, 10))
	block := make([]byte, 64<<10)
	for at := int64(0); left > 0; at++ {
		copy(block, fmt.Sprintf("%016d", at))
		n, err := w.Write(block[:min(left, int64(len(block)))])
		if err != nil {
			return
		}
		left -= int64(n)
	}
}

// events sends n events with a gap between them.
func events(w http.ResponseWriter, r *http.Request) {
	n, _ := strconv.Atoi(r.FormValue("n"))
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	for i := range n {
		fmt.Fprintf(w, "data: %d\n\n", i)
		_ = flush.Flush()
		pause(r, duration(r, "gap"))
	}
}

// stream answers each line as it comes, and has trailers, as gRPC does: both directions are open at the same time.
func stream(w http.ResponseWriter, r *http.Request) {
	flush := http.NewResponseController(w)
	_ = flush.EnableFullDuplex()
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
	w.WriteHeader(http.StatusOK)
	_ = flush.Flush()
	b := make([]byte, 4096)
	total := 0
	for {
		n, err := r.Body.Read(b)
		total += n
		if n > 0 {
			_, _ = w.Write([]byte(strings.ToUpper(string(b[:n]))))
			_ = flush.Flush()
		}
		if err != nil {
			break
		}
	}
	w.Header().Set("Grpc-Status", "0")
	w.Header().Set("Grpc-Message", fmt.Sprintf("%d bytes, trailer %q", total, r.Trailer.Get("X-End")))
}

// leak gives back the credentials of a request, as a careless host does.
func leak(w http.ResponseWriter, r *http.Request) {
	got := r.Header.Get("Authorization") + r.Header.Get("X-Api-Key") + r.FormValue("key")
	switch r.PathValue("how") {
	case "header":
		w.Header().Set("X-Your-Token", got)
	case "json":
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"token": got, "hex": hex.EncodeToString([]byte(got)),
			"base64": base64.StdEncoding.EncodeToString([]byte(got))})
	case "gzip":
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, "your token is "+got)
		_ = z.Close()
	case "chunks":
		flush := http.NewResponseController(w)
		for i := range got {
			_, _ = io.WriteString(w, got[i:i+1])
			_ = flush.Flush()
		}
	case "error":
		http.Error(w, "token "+got+" is not good enough", http.StatusForbidden)
	case "redirect":
		w.Header().Set("Location", "https://"+r.Host+"/next?token="+got)
		w.WriteHeader(http.StatusFound)
	case "trailer":
		w.Header().Set("Trailer", "X-Your-Token")
		_, _ = io.WriteString(w, "see the trailer\n")
		w.Header().Set("X-Your-Token", got)
	default:
		http.NotFound(w, r)
	}
}
