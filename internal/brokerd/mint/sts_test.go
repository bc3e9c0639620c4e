package mint

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glovebox/internal/broker"
)

const (
	awsKeyID  = "AKIDEXAMPLE"
	awsSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
	awsPolicy = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:GetObject","Resource":"*"}]}`
)

// securityTokens is the service: it checks the signature (version 4) by its own reckoning, the clock and the form.
type securityTokens struct {
	t *testing.T

	mu      sync.Mutex
	ahead   time.Duration
	session string // that the caller's own credentials must carry
	want    url.Values
	refuse  string // an error code instead
	tries   int
}

func (s *securityTokens) now() time.Time { return time.Now().Add(s.ahead) }

func mac(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// signed says what is wrong with a request's signature.
func (s *securityTokens) signed(r *http.Request, body []byte) string {
	var credential, headers, signature string
	rest, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	for part := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch name {
		case "Credential":
			credential = value
		case "SignedHeaders":
			headers = value
		case "Signature":
			signature = value
		}
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	day := at.Format("20060102")
	switch {
	case !ok || err != nil:
		return "MissingAuthenticationToken"
	case credential != awsKeyID+"/"+day+"/eu-central-1/sts/aws4_request":
		return "InvalidClientTokenId"
	case s.now().Sub(at).Abs() > 15*time.Minute:
		return "SignatureDoesNotMatch" // as the real one says it, with the times in the text
	case r.Header.Get("X-Amz-Security-Token") != s.session:
		return "InvalidClientTokenId"
	}
	names := strings.Split(headers, ";")
	if !slices.IsSorted(names) || !slices.Contains(names, "host") || !slices.Contains(names, "x-amz-date") {
		return "SignatureDoesNotMatch"
	}
	canonical := "POST\n/\n\n"
	for _, n := range names {
		value := r.Header.Get(n)
		switch n {
		case "host":
			value = r.Host
		case "content-length":
			value = fmt.Sprint(len(body))
		}
		canonical += n + ":" + strings.TrimSpace(value) + "\n"
	}
	sum := sha256.Sum256(body)
	canonical += "\n" + headers + "\n" + hex.EncodeToString(sum[:])
	hashed := sha256.Sum256([]byte(canonical))
	text := "AWS4-HMAC-SHA256\n" + at.Format("20060102T150405Z") + "\n" + day + "/eu-central-1/sts/aws4_request\n" +
		hex.EncodeToString(hashed[:])
	key := mac(mac(mac(mac([]byte("AWS4"+awsSecret), day), "eu-central-1"), "sts"), "aws4_request")
	if hex.EncodeToString(mac(key, text)) != signature {
		return "SignatureDoesNotMatch"
	}
	return ""
}

func (s *securityTokens) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "text/xml")
	w.Header().Set("Date", s.now().UTC().Format(http.TimeFormat))
	code := s.signed(r, body)
	if code == "" {
		code = s.refuse
	}
	if code != "" {
		w.WriteHeader(403)
		fmt.Fprintf(w, `<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>%s</Code>`+
			`<Message>it was %s</Message></Error><RequestId>1</RequestId></ErrorResponse>`, code, awsSecret)
		return
	}
	form, err := url.ParseQuery(string(body))
	if diff := cmp.Diff(s.want, form); err != nil || diff != "" {
		s.t.Errorf("the form (-want +got): %s", diff)
	}
	fmt.Fprintf(w, `<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>`+
		`<AccessKeyId>ASIA1</AccessKeyId><SecretAccessKey>lent+/secret</SecretAccessKey><SessionToken>lent/session==</SessionToken>`+
		`<Expiration>%s</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`,
		s.now().Add(15*time.Minute).UTC().Format(time.RFC3339))
}

func newSTS(t *testing.T, source string) (*world, *securityTokens) {
	t.Helper()
	s := &securityTokens{t: t, want: url.Values{"Action": {"AssumeRole"}, "Version": {"2011-06-15"}, "DurationSeconds": {"900"},
		"RoleArn": {"arn:aws:iam::123456789012:role/box"}, "RoleSessionName": {"glovebox-run_1"}, "Policy": {awsPolicy},
		"ExternalId": {"ext"}}}
	tokens := &broker.Tokens{STS: &broker.STSTokens{Role: "arn:aws:iam::123456789012:role/box", Region: "eu-central-1",
		Policy: awsPolicy, AccessKeyID: awsKeyID, ExternalID: "ext", Endpoint: "https://example.com"}}
	return newWorld(t, tokens, map[string]string{secretName: source}, s.ServeHTTP), s
}

// TestAssumeRole: credentials of a role within the session's policy, out of a key or of what a credential_process prints.
func TestAssumeRole(t *testing.T) {
	printed := fmt.Sprintf(`{"Version":1,"AccessKeyId":%q,"SecretAccessKey":%q,"SessionToken":"own/session=="}`, awsKeyID, awsSecret)
	for source, session := range map[string]string{awsSecret + "\n": "", printed: "own/session=="} {
		w, s := newSTS(t, source)
		s.session = session
		l := w.lease()
		got := w.token(l)
		if got.AccessKeyID != "ASIA1" || got.Value != "lent+/secret" || got.Session != "lent/session==" {
			t.Errorf("got %q %q %q", got.AccessKeyID, got.Value, got.Session)
		}
		if life := got.Expires.Sub(w.now).Round(time.Minute); life != 15*time.Minute {
			t.Errorf("a life of %v", life)
		}
		if diff := cmp.Diff([]string{"lent+/secret", "lent/session=="}, l.Secrets()); diff != "" {
			t.Errorf("what answers must not hold (-want +got):\n%s", diff)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Errorf("the end: %v", err)
		}
	}
}

// TestAssumeRoleClock: a clock that is off is made up for, once.
func TestAssumeRoleClock(t *testing.T) {
	w, s := newSTS(t, awsSecret)
	s.ahead = 20 * time.Minute
	got := w.token(w.lease())
	if s.tries != 2 {
		t.Errorf("asked %d times", s.tries)
	}
	if life := got.Expires.Sub(w.now).Round(time.Minute); life != 15*time.Minute {
		t.Errorf("a life of %v by a clock that differs", life)
	}
}

// TestAssumeRoleRefusals: the service's word, its fix, and nothing of its text.
func TestAssumeRoleRefusals(t *testing.T) {
	for code, want := range map[string]string{"AccessDenied": "trust policy", "PackedPolicyTooLarge": "sts.policy",
		"ValidationError": "sts.duration", "ExpiredToken": "renew", "Whatever": "trail"} {
		w, s := newSTS(t, awsSecret)
		s.refuse = code
		said, fix := w.refusal(w.lease())
		wantText(t, "the refusal", said, "example.com made no token for secret KEY (status 403: "+code+")")
		wantText(t, "the fix", fix, want)
		if s.tries != 1 {
			t.Errorf("%s: asked %d times", code, s.tries)
		}
	}
	w, _ := newSTS(t, "another+secret")
	said, fix := w.refusal(w.lease())
	wantText(t, "the refusal", said, "SignatureDoesNotMatch")
	wantText(t, "the fix", fix, "access_key_id")
	for source, want := range map[string]string{`{"Version":2}`: "JSON that is no credentials",
		`{"Version":1,"AccessKeyId":"A"}`: "no pair", "two words": "no pair"} {
		w, s := newSTS(t, source)
		said, _ := w.refusal(w.lease())
		wantText(t, source, said, want)
		if s.tries != 0 {
			t.Errorf("%s: the service was asked", source)
		}
	}
}
