package brokerd

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"glovebox/internal/broker"
)

// signedBy signs what came upstream once more, as the service does that has the key, and compares.
func signedBy(t *testing.T, q *http.Request, body string, c aws.Credentials, service string) bool {
	t.Helper()
	at, err := time.Parse("20060102T150405Z", q.Header.Get("X-Amz-Date"))
	if err != nil || time.Since(at).Abs() > time.Minute {
		t.Errorf("signed at %q", q.Header.Get("X-Amz-Date"))
	}
	again := q.Clone(context.Background())
	again.URL.Scheme, again.URL.Host = "https", q.Host
	again.ContentLength = int64(len(body))
	got := again.Header.Get("Authorization")
	again.Header.Del("Authorization")
	// Headers that are not signed: what the transport adds.
	_, list, _ := strings.Cut(got, "SignedHeaders=")
	list, _, _ = strings.Cut(list, ",")
	signed := strings.Split(list, ";")
	for name := range again.Header {
		if !strings.Contains(";"+strings.Join(signed, ";")+";", ";"+strings.ToLower(name)+";") {
			again.Header.Del(name)
		}
	}
	hash := again.Header.Get(hashHeader)
	if hash == "" {
		hash = sum([]byte(body))
	}
	err = v4.NewSigner().SignHTTP(t.Context(), c, again, hash, service, "eu-central-1", at, func(o *v4.SignerOptions) {
		o.DisableURIPathEscaping = service == "s3"
	})
	if err != nil {
		t.Fatal(err)
	}
	return got == again.Header.Get("Authorization")
}

func TestSigV4(t *testing.T) {
	const secretKey, session = "canarySecretAccessKey/0123456789", "canarySessionToken=="
	process := `{"Version":1,"AccessKeyId":"AKIACANARY","SecretAccessKey":"` + secretKey + `","SessionToken":"` + session + `"}`
	for _, tt := range []struct {
		name, service, method, path, body string
		header                            []string
		hash                              string
	}{
		{name: "get", service: "s3", method: "GET", path: "/bucket/a%20key?list-type=2&prefix=x%2Fy", hash: sum(nil)},
		{name: "put", service: "s3", method: "PUT", path: "/bucket/key", body: "the body", hash: unsignedPayload},
		{name: "hash said", service: "s3", method: "PUT", path: "/bucket/key", body: "the body", header: []string{hashHeader, sum([]byte("the body"))}, hash: sum([]byte("the body"))},
		{name: "chunks", service: "s3", method: "PUT", path: "/bucket/key", body: "8\r\nthe body\r\n0\r\n\r\n", header: []string{hashHeader, unsignedChunks}, hash: unsignedChunks},
		{name: "other service", service: "dynamodb", method: "POST", path: "/", body: `{"TableName":"t"}`, header: []string{"X-Amz-Target", "DynamoDB_20120810.Query"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil, broker.Spec{Name: "AWS", Attach: broker.PlaceSigV4, Region: "eu-central-1", Service: tt.service, Foreign: broker.ForeignRefuse})
			write(t, r.file, process)
			own := []string{"Authorization", broker.SigV4Inside + "20260101/eu-central-1/s3/aws4_request, SignedHeaders=host, Signature=00", "X-Amz-Date", "20200101T000000Z"}
			a := r.do(tt.method, tt.path, tt.body, append(own, tt.header...)...)
			if a.err != nil {
				t.Fatal(a.err)
			}
			q, body := r.last()
			c := aws.Credentials{AccessKeyID: "AKIACANARY", SecretAccessKey: secretKey, SessionToken: session}
			if !signedBy(t, q, body, c, tt.service) || q.Header.Get("X-Amz-Security-Token") != session || q.Header.Get(hashHeader) != tt.hash || body != tt.body {
				t.Errorf("came as %v %q", q.Header, body)
			}
			c.SecretAccessKey = "another"
			if signedBy(t, q, body, c, tt.service) {
				t.Error("the check takes any key")
			}
			if r.env["AWS_SECRET_ACCESS_KEY"] == "" || r.env["AWS_SECRET_ACCESS_KEY"] != r.env["AWS"] || r.env["AWS_REGION"] != "eu-central-1" ||
				!strings.Contains(broker.SigV4Inside, r.env["AWS_ACCESS_KEY_ID"]) {
				t.Errorf("inside: %v", r.env)
			}
		})
	}
}

func TestSigV4Refuses(t *testing.T) {
	r := newRig(t, nil, broker.Spec{Name: "AWS", Attach: broker.PlaceSigV4, Region: "eu-central-1", Service: "dynamodb", AccessKeyID: "AKIACANARY", Foreign: broker.ForeignRefuse})
	for name, tt := range map[string]struct {
		path, body string
		header     []string
		want       string
	}{
		"signed chunks": {"/", "x", []string{hashHeader, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}, "foreign-credential"},
		"long body":     {"/", strings.Repeat("x", maxHashed+1), nil, "body-cap"},
		"another's key": {"/", "", []string{"Authorization", "AWS4-HMAC-SHA256 Credential=AKIAOTHER/x, Signature=y"}, "foreign-credential"},
		"presigned":     {"/?X-Amz-Signature=y&X-Amz-Credential=AKIAOTHER", "", nil, "foreign-credential"},
		"its token":     {"/", "", []string{"X-Amz-Security-Token", "x"}, "foreign-credential"},
	} {
		if a := r.do("POST", tt.path, tt.body, tt.header...); a.refused == nil || a.refused.reason != tt.want {
			t.Errorf("%s: %+v", name, a)
		}
	}
	write(t, r.file, "no JSON, and longer than eight")
	r2 := newRig(t, nil, broker.Spec{Name: "AWS", Attach: broker.PlaceSigV4, Region: "eu-central-1", Service: "dynamodb"})
	if a := r2.do("GET", "/", ""); a.refused == nil || !strings.Contains(a.refused.text, "credential_process") || leaks(a.refused.text+r2.log.String(), canary) {
		t.Errorf("%+v\n%s", a, r2.log)
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
