package mint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"glovebox"
	"glovebox/internal/broker"
)

// assumedRole gets credentials of a role of AWS, bounded by a policy of the session.
type assumedRole struct {
	service
	cfg *broker.STSTokens
}

const (
	leastSession = 15 * time.Minute // AWS gives none that are shorter
	longestName  = 64
	// attempts are two, because a clock that differs is found by the first.
	attempts = 2
)

// processCredentials are what a credential_process prints.
type processCredentials struct {
	Version         int
	AccessKeyID     string `json:"AccessKeyId"`
	SecretAccessKey string
	SessionToken    string
}

func (a *assumedRole) mint(ctx context.Context, run Run) (Token, error) {
	own, err := a.credentials(ctx)
	if err != nil {
		return Token{}, err
	}
	o := sts.Options{
		Region:      cmp.Or(a.cfg.Region, "us-east-1"),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return own, nil }),
		HTTPClient:  a.client,
		Retryer:     retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts = attempts }),
	}
	if a.cfg.Endpoint != "" {
		o.BaseEndpoint = aws.String(a.cfg.Endpoint)
	}
	in := &sts.AssumeRoleInput{
		RoleArn:         aws.String(a.cfg.Role),
		RoleSessionName: aws.String(sessionName(run)),
		Policy:          aws.String(a.cfg.Policy),
		DurationSeconds: aws.Int32(int32(cmp.Or(a.cfg.Duration, leastSession) / time.Second)),
	}
	if a.cfg.ExternalID != "" {
		in.ExternalId = aws.String(a.cfg.ExternalID)
	}
	out, err := sts.New(o).AssumeRole(ctx, in)
	if err != nil {
		return Token{}, a.failed(err)
	}
	c := out.Credentials
	if c == nil || c.Expiration == nil || !sendable(aws.ToString(c.SecretAccessKey)) ||
		!sendable(aws.ToString(c.AccessKeyId)) || !sendable(aws.ToString(c.SessionToken)) {
		return Token{}, a.unusable(a.address(), "holds no credentials")
	}
	t := Token{Value: *c.SecretAccessKey, AccessKeyID: *c.AccessKeyId, Session: *c.SessionToken}
	now := a.now()
	if at, ok := middleware.GetServerTime(out.ResultMetadata); ok {
		now = at
	}
	return t.lasting(a.now(), min(c.Expiration.Sub(now), maxLife)), nil
}

func (a *assumedRole) address() string {
	return cmp.Or(a.cfg.Endpoint, "https://sts."+a.cfg.Region+".amazonaws.com")
}

// credentials are the long-lived ones that the source holds.
func (a *assumedRole) credentials(ctx context.Context) (aws.Credentials, error) {
	text, err := a.secret(ctx, a.name)
	if err != nil {
		return aws.Credentials{}, err
	}
	c := processCredentials{AccessKeyID: a.cfg.AccessKeyID, SecretAccessKey: text}
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		c = processCredentials{}
		if json.Unmarshal([]byte(text), &c) != nil || c.Version != 1 {
			return aws.Credentials{}, glovebox.Errorf(glovebox.CodeUnavailable,
				"print what a credential_process prints: Version 1, AccessKeyId, SecretAccessKey",
				"the source of secret %s holds JSON that is no credentials", a.name)
		}
	}
	if !sendable(c.AccessKeyID) || !sendable(c.SecretAccessKey) {
		return aws.Credentials{}, glovebox.Errorf(glovebox.CodeUnavailable,
			"set access_key_id beside sts.role, or print what a credential_process prints",
			"the source of secret %s is no pair of an access key's id and its secret", a.name)
	}
	return aws.Credentials{AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, SessionToken: c.SessionToken}, nil
}

// failed is an error of the library as one for callers: the service's own word and status.
func (a *assumedRole) failed(err error) error {
	var refusal interface{ ErrorCode() string }
	var answer interface{ HTTPStatusCode() int }
	if !errors.As(err, &refusal) || !errors.As(err, &answer) {
		return a.unreached(a.address(), err)
	}
	fix := "see the event of the service's own trail"
	switch refusal.ErrorCode() {
	case "AccessDenied":
		fix = "let the role's trust policy name who the source's credentials are of; check external_id"
	case "InvalidClientTokenId", "SignatureDoesNotMatch":
		fix = "check access_key_id and what the source holds"
	case "ExpiredToken", "RequestExpired":
		fix = "renew what the source holds, and compare this machine's clock"
	case "MalformedPolicyDocument", "PackedPolicyTooLarge":
		fix = "mend sts.policy"
	case "ValidationError":
		fix = "check sts.role and sts.duration: a role has a longest session of its own"
	case "RegionDisabledException":
		fix = "check sts.region"
	}
	return a.refused(a.address(), answer.HTTPStatusCode(), refusal.ErrorCode(), fix)
}

// revoke: credentials of a role end by themselves.
func (a *assumedRole) revoke(context.Context, Token) error { return errIrrevocable }

// sessionName names the run in the service's own trail.
func sessionName(run Run) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_=,.@-", r) {
			return r
		}
		return '-'
	}, "glovebox-"+run.ID)
	return name[:min(len(name), longestName)]
}
