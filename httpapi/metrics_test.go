package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMetrics holds the text against the format: a heading for each name, and every value one that can be read back.
func TestMetrics(t *testing.T) {
	d := &Door{cfg: Config{Metrics: func() []Metric {
		return []Metric{
			{Name: "a_total", Help: "All\nof it \\.", Labels: []Label{{"kind", "a \"b\" \\ \n"}, {"fork", "true"}}, Value: 1e6},
			{Name: "a_total", Labels: []Label{{"kind", "c"}}, Value: 0.5},
			{Name: "b", Help: "B.", Value: -1},
		}
	}}}
	w := httptest.NewRecorder()
	c := &call{Door: d, w: w, r: httptest.NewRequest("GET", "/metrics", nil)}
	c.rc = http.NewResponseController(w)
	if err := c.showMetrics(); err != nil {
		t.Fatal(err)
	}
	want := `# HELP glovebox_runs_live Runs in progress.
# TYPE glovebox_runs_live gauge
glovebox_runs_live 0
# HELP a_total All\nof it \\.
# TYPE a_total counter
a_total{kind="a \"b\" \\ \n",fork="true"} 1e+06
a_total{kind="c"} 0.5
# HELP b B.
# TYPE b gauge
b -1
`
	if d := cmp.Diff(want, w.Body.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
