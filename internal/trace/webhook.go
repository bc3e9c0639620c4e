package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// webhookWait bounds a request to the webhook, its answer included.
const webhookWait = 10 * time.Second

// webhook posts heads to a server. Its errors name no more of the address than the host: the rest may hold a token.
type webhook struct {
	url    *url.URL
	client http.Client
}

// newWebhook returns nil for an empty address.
func newWebhook(address string) (*webhook, error) {
	if address == "" {
		return nil, nil
	}
	to, err := ParseWebhook(address)
	if err != nil {
		return nil, err
	}
	// A transport of its own: that of package http would heed the environment and keep connections for others.
	return &webhook{url: to, client: http.Client{
		Transport:     &http.Transport{ForceAttemptHTTP2: true, MaxIdleConns: 1, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       webhookWait,
	}}, nil
}

// ParseWebhook reads the address of a webhook: https, or http to this machine alone, since whoever is on the way could keep
// a head to himself.
func ParseWebhook(address string) (*url.URL, error) {
	to, err := url.Parse(address)
	if err != nil || to.Host == "" || to.Fragment != "" {
		return nil, errors.New("it is no address such as https://log.example.com/heads")
	}
	host := to.Hostname()
	local := host == "localhost" || host == "127.0.0.1" || host == "::1"
	if to.Scheme != "https" && (to.Scheme != "http" || !local) {
		return nil, errors.New("it is neither https nor http to this machine")
	}
	return to, nil
}

// post sends a head as {"seq":…,"hash":"…"}. Any answer of 2xx is taken for its receipt.
func (w *webhook) post(h head) error {
	ref := h.ref()
	body, err := json.Marshal(struct {
		Seq  int64  `json:"seq"`
		Hash string `json:"hash"`
	}{ref.Seq, ref.Hash})
	if err != nil {
		return err
	}
	answer, err := w.client.Post(w.url.String(), "application/json", bytes.NewReader(body))
	if err != nil {
		var outer *url.Error // which spells the whole address
		if errors.As(err, &outer) {
			err = outer.Err
		}
		return fmt.Errorf("post to the webhook at %s: %w", w.url.Host, err)
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, 64<<10) // so that the connection can be used again
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("the webhook at %s answered %d", w.url.Host, answer.StatusCode)
	}
	return nil
}

func (w *webhook) close() { w.client.CloseIdleConnections() }
