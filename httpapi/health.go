package httpapi

import (
	"context"
	"net/http"
	"time"

	"glovebox"
)

// health is what was last found out about the service. The machine is examined at most once in healthFor, by one caller at
// a time.
type health struct {
	turn  chan struct{}
	at    time.Time
	shown healthShown
}

const healthFor = 5 * time.Second

// healthShown is the answer of /healthz.
type healthShown struct {
	Ready   bool      `json:"ready"`
	Version string    `json:"version"`
	Runs    int       `json:"runs"` // in progress
	Missing []missing `json:"missing"`
}

// missing is why the service is not ready.
type missing struct {
	Name   string `json:"name"`
	Detail string `json:"detail"`
	Fix    string `json:"fix"`
}

// showHealth tells whether code of the default trust can run, and if not what is missing: 200 or 503.
func (c *call) showHealth() error {
	shown, err := c.health.examine(c.r.Context(), c.cfg.Service)
	if err != nil {
		return err
	}
	shown.Version, shown.Runs = c.cfg.Version, c.Live()
	status := http.StatusOK
	if !shown.Ready {
		status = glovebox.CodeUnavailable.HTTPStatus()
	}
	return c.answer(status, shown)
}

func (h *health) examine(ctx context.Context, s glovebox.Service) (healthShown, error) {
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return healthShown{}, ctx.Err()
	}
	if !h.at.IsZero() && time.Since(h.at) < healthFor {
		return h.shown, nil
	}
	report, err := s.Doctor(ctx)
	if err != nil {
		return healthShown{}, err
	}
	h.at, h.shown = time.Now(), healthShown{Ready: report.Ready, Missing: []missing{}}
	if d := report.Default; !d.Allow && d.Reason != "" {
		h.shown.Missing = append(h.shown.Missing, missing{"rung", d.Reason, d.Fix})
	}
	for _, control := range report.Controls {
		if control.Required && !control.Available && !report.Ready {
			h.shown.Missing = append(h.shown.Missing, missing{control.Name, control.Detail, control.Fix})
		}
	}
	return h.shown, nil
}
