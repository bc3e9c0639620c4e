package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"sync"
	"time"

	"glovebox"
	"glovebox/internal/egress"
)

// Where a decision was made.
const (
	layerDNS    = "dns"
	layerTCP    = "tcp"
	layerTLS    = "tls"
	layerHTTP   = "http"
	layerBroker = "broker"
)

// sampleEvery is how long decisions that are the same are gathered after the first of them was told.
const sampleEvery = time.Second

// The decisions that are kept apart at a time: with their requests, then with their hosts. Of what comes beyond that only
// port and reason are told.
const (
	maxSamples = 128
	maxHosts   = 256
)

// same is what two decisions have in common that are told as one.
type same struct {
	host, reason, layer, rule, method, path string
	port                                    int
	allowed                                 bool
}

// detail is what only the log has of one decision.
type detail struct {
	query  string // of a request: its hash is told
	status int
	took   time.Duration
	err    error // for the operator
}

// ledger tells decisions: the first of a kind at once, those that follow gathered.
type ledger struct {
	run    string
	record func(glovebox.EgressFlow)
	log    *slog.Logger

	mu     sync.Mutex
	recent map[same]*glovebox.EgressFlow // told within the last second, and what came since
	timer  *time.Timer
	closed bool
}

func newLedger(run string, record func(glovebox.EgressFlow), log *slog.Logger) *ledger {
	if record == nil {
		record = func(glovebox.EgressFlow) {}
	}
	return &ledger{run: run, record: record, log: log, recent: map[same]*glovebox.EgressFlow{}}
}

// denied tells of a refusal.
func (l *ledger) denied(host string, port uint16, layer string, reason egress.Reason, rule string) {
	l.note(glovebox.EgressFlow{Host: host, Port: int(port), Layer: layer, Reason: string(reason), Rule: rule}, detail{})
}

// deniedFor tells of a refusal with what the operator may want to know of it.
func (l *ledger) deniedFor(f *flow, layer string, reason egress.Reason, err error) {
	l.note(glovebox.EgressFlow{Host: f.name, Port: int(f.port), Layer: layer, Reason: string(reason)}, detail{err: err})
}

func (l *ledger) note(f glovebox.EgressFlow, d detail) {
	f.Count = max(f.Count, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		key := same{f.Host, f.Reason, f.Layer, f.Rule, f.Method, f.Path, f.Port, f.Allowed}
		if sum, ok := l.recent[key]; ok {
			add(sum, f)
			return
		}
		switch n := len(l.recent); {
		case n >= maxSamples && f.Method != "":
			f.Method, f.Path = "", ""
		case n >= maxHosts && f.Host != "":
			f.Host, f.Rule = "", ""
		default:
			l.begin(key, f, d)
			return
		}
	}
}

// begin tells the first of a kind.
func (l *ledger) begin(key same, f glovebox.EgressFlow, d detail) {
	l.tell(f, d)
	if l.closed {
		return
	}
	rest := f
	rest.Count, rest.BytesUp, rest.BytesDown = 0, 0, 0
	l.recent[key] = &rest
	if l.timer == nil {
		l.timer = time.AfterFunc(sampleEvery, l.flush)
	}
}

func add(sum *glovebox.EgressFlow, f glovebox.EgressFlow) {
	sum.Count += f.Count
	sum.BytesUp += f.BytesUp
	sum.BytesDown += f.BytesDown
}

// flush tells what was gathered. What nothing followed is forgotten.
func (l *ledger) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, sum := range l.recent {
		if sum.Count == 0 {
			delete(l.recent, key)
			continue
		}
		l.tell(*sum, detail{})
		sum.Count, sum.BytesUp, sum.BytesDown = 0, 0, 0
	}
	l.timer = nil
	if len(l.recent) > 0 && !l.closed {
		l.timer = time.AfterFunc(sampleEvery, l.flush)
	}
}

// close tells what is left. What comes later is told at once.
func (l *ledger) close() {
	l.mu.Lock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	l.flush()
}

// tell is called with the lock held, so that records come in order.
func (l *ledger) tell(f glovebox.EgressFlow, d detail) {
	l.record(f)
	if !l.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	decision := "denied"
	if f.Allowed {
		decision = "allowed"
	}
	attrs := []slog.Attr{
		slog.String("run", l.run), slog.String("decision", decision), slog.String("layer", f.Layer),
		slog.String("host", f.Host), slog.Int("port", f.Port), slog.String("reason", f.Reason), slog.String("rule", f.Rule),
		slog.Int64("count", f.Count), slog.Int64("bytes_up", f.BytesUp), slog.Int64("bytes_down", f.BytesDown),
	}
	if f.Method != "" {
		attrs = append(attrs, slog.String("method", f.Method), slog.String("path", f.Path))
	}
	if d.query != "" {
		sum := sha256.Sum256([]byte(d.query))
		attrs = append(attrs, slog.String("query_sha256", hex.EncodeToString(sum[:8])))
	}
	if d.status != 0 {
		attrs = append(attrs, slog.Int("status", d.status), slog.Int64("ms", d.took.Milliseconds()))
	}
	if d.err != nil {
		attrs = append(attrs, slog.String("error", d.err.Error()))
	}
	l.log.LogAttrs(context.Background(), slog.LevelInfo, "egress", attrs...)
}
