package brokerd

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"glovebox/internal/egress"
)

// Words of AWS for what of a body is signed.
const (
	hashHeader        = "X-Amz-Content-Sha256"
	unsignedPayload   = "UNSIGNED-PAYLOAD"
	unsignedChunks    = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	storage           = "s3"
	maxHashed         = 1 << 20
	maxHashedComplain = "1 MiB"
)

// sign signs the request anew: what the program signed it with was taken out.
func (x *exchange) sign(out *http.Request) error {
	s := &x.loan.spec
	hash, err := payloadHash(out, s.Service)
	if err != nil {
		return err
	}
	if s.Service == storage {
		out.Header.Set(hashHeader, hash)
	}
	credentials := aws.Credentials{AccessKeyID: x.cred.keyID, SecretAccessKey: x.cred.value.Reveal(),
		SessionToken: x.cred.session.Reveal()}
	return v4.NewSigner().SignHTTP(out.Context(), credentials, out, hash, s.Service, s.Region, time.Now(),
		func(o *v4.SignerOptions) {
			o.DisableURIPathEscaping = s.Service == storage // it takes paths as they are
		})
}

// payloadHash is what is signed of the body. What the program says its hash is the service compares; what it does not say is
// hashed here, as far as it is short.
func payloadHash(out *http.Request, service string) (string, error) {
	said := out.Header.Get(hashHeader)
	switch {
	case regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(said):
		return said, nil
	case (said == unsignedPayload || said == unsignedChunks) && service == storage:
		return said, nil
	case said != "" && said != unsignedPayload:
		return "", &refusal{reason: egress.ReasonForeignCredential,
			text: "the parts of the body are signed with the program's own key: switch the signing of payloads off in the client"}
	}
	out.Header.Del(hashHeader)
	if out.Body == nil || out.Body == http.NoBody {
		return sum(nil), nil
	}
	if service == storage {
		return unsignedPayload, nil
	}
	body, err := io.ReadAll(io.LimitReader(out.Body, maxHashed+1))
	if err != nil {
		return "", err
	}
	if len(body) > maxHashed {
		return "", &refusal{status: http.StatusRequestEntityTooLarge, reason: egress.ReasonBodyCap,
			text: "a body of more than " + maxHashedComplain + " must come with its hash in " + hashHeader + " to be signed"}
	}
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return sum(body), nil
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
