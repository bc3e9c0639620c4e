package httpapi

import (
	"net/http"
	"strconv"
	"strings"
)

// Metric is one number that a server tells of itself.
type Metric struct {
	// Name follows the rules of the text format of Prometheus; one that ends with _total only grows.
	Name string
	// Help says in a line what it counts. It is that of the first of a name.
	Help string
	// Labels tell numbers of one name apart.
	Labels []Label
	Value  float64
}

// Label is one of a Metric's.
type Label struct{ Name, Value string }

// showMetrics tells what Config.Metrics has, in the text format of Prometheus (version 0.0.4), numbers of one name after
// each other. That is written here: the usual library would cost each start of the program more than all of this package.
func (c *call) showMetrics() error {
	if c.cfg.Metrics == nil {
		return unbuilt("/metrics", "docs/serve.md lists what there is")
	}
	var b strings.Builder
	last := ""
	live := Metric{Name: "glovebox_runs_live", Help: "Runs in progress.", Value: float64(c.Live())}
	for _, m := range append([]Metric{live}, c.cfg.Metrics()...) {
		if m.Name != last {
			kind := "gauge"
			if strings.HasSuffix(m.Name, "_total") {
				kind = "counter"
			}
			b.WriteString("# HELP " + m.Name + " " + escapeMetric(m.Help, false) + "\n# TYPE " + m.Name + " " + kind + "\n")
			last = m.Name
		}
		b.WriteString(m.Name)
		for i, l := range m.Labels {
			b.WriteString([]string{"{", ","}[min(i, 1)] + l.Name + `="` + escapeMetric(l.Value, true) + `"`)
		}
		if len(m.Labels) > 0 {
			b.WriteByte('}')
		}
		b.WriteString(" " + strconv.FormatFloat(m.Value, 'g', -1, 64) + "\n")
	}
	c.send(http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", []byte(b.String()))
	return nil
}

// escapeMetric spells a text as the format does, between quotes or not.
func escapeMetric(s string, quoted bool) string {
	s = strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "\n", `\n`)
	if quoted {
		s = strings.ReplaceAll(s, `"`, `\"`)
	}
	return s
}
