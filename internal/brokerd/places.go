package brokerd

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"glovebox/internal/broker"
	"glovebox/internal/egress"
)

// credentialHeaders are where requests have credentials: none but the one that is lent goes to a bound host, so that nobody
// uses it by an account of his own.
var credentialHeaders = []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "Api-Key", "Apikey",
	"X-Goog-Api-Key", "X-Goog-Iam-Authorization-Token", "X-Auth-Token", "X-Auth-Key", "X-Access-Token", "X-Session-Token",
	"Private-Token", "Job-Token", "Deploy-Token", "X-Token", "X-Gitlab-Token", "X-Github-Token", "X-Vault-Token",
	"X-Functions-Key",
	"X-Amz-Security-Token", "X-Ms-Token-Aad-Access-Token", "Ocp-Apim-Subscription-Key", "Dpop", "Authentication"}

// credentialQuery are parameters of the same kind, in lower case.
var credentialQuery = []string{"access_token", "api_key", "api-key", "apikey", "private_token", "job_token",
	"client_secret", "auth_token",
	"id_token", "refresh_token", "oauth_token", "oauth_signature", "x-api-key", "x-amz-credential", "x-amz-signature",
	"x-amz-security-token", "x-amz-algorithm", "x-amz-date", "x-amz-expires", "x-amz-signedheaders", "x-goog-signature",
	"x-goog-credential",
	"x-goog-algorithm", "awsaccesskeyid", "signature", "sig"}

// takeOut takes all credentials out of the request, and refuses what must not be in it. Afterwards the rest has no
// placeholder, and wants says whether what is lent is to be added.
func (x *exchange) takeOut() *refusal {
	x.header, x.wants = x.r.Header.Clone(), x.loan.spec.Attach != ""
	headers := x.headersOfCredentials()
	for _, name := range headers {
		for _, value := range x.header.Values(name) {
			if refused := x.took(name, "", value); refused != nil {
				return refused
			}
		}
		x.header.Del(name)
	}
	for name := range x.r.Trailer {
		if slices.Contains(headers, name) {
			return &refusal{reason: egress.ReasonForeignCredential, text: "a credential behind the body is not sent"}
		}
	}
	if refused := x.takeQuery(); refused != nil {
		return refused
	}
	if i := x.b.detector.In(x.r.Method, x.r.URL.EscapedPath(), x.query); i >= 0 {
		return x.misplaced(i)
	}
	return x.looked(x.header)
}

func (x *exchange) headersOfCredentials() []string {
	s := &x.loan.spec
	names := slices.Clone(credentialHeaders)
	if s.Place() == broker.PlaceSigV4 {
		names = append(names, "X-Amz-Date")
	}
	for _, name := range append([]string{s.Header}, s.StripHeaders...) {
		if name = http.CanonicalHeaderKey(name); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// took judges a credential that was taken out of a header or a parameter.
func (x *exchange) took(header, parameter, value string) *refusal {
	s := &x.loan.spec
	i := x.b.detector.In(value)
	switch {
	case i >= 0 && x.b.lent[i] != x.loan:
		return x.misplaced(i)
	case i >= 0 && s.Placeholder != "":
		if x.wants || !x.inPlace(header, parameter, value) {
			return x.misplaced(i)
		}
		x.wants = true
	case i >= 0: // what is attached stands in for it
	case s.Place() == broker.PlaceSigV4 && (header == "X-Amz-Date" || header == "Authorization" &&
		strings.HasPrefix(value, broker.SigV4Inside)):
		// signed with what the run was told to sign with
	case s.Foreign == broker.ForeignRefuse:
		return &refusal{reason: egress.ReasonForeignCredential,
			text: "the request brings a credential of its own, where only secret " + s.Name + " may be used"}
	}
	return nil
}

// inPlace tells whether a value has the placeholder where it is replaced, and keeps what is around it.
func (x *exchange) inPlace(header, parameter, value string) bool {
	s, p := &x.loan.spec, x.loan.placeholder
	switch s.Placeholder {
	case broker.PlaceBearer:
		scheme, rest, _ := strings.Cut(value, " ")
		x.form = value
		return header == "Authorization" && rest == p && (strings.EqualFold(scheme, "Bearer") || strings.EqualFold(scheme,
			"token"))
	case broker.PlaceHeader:
		x.form = value
		return header == http.CanonicalHeaderKey(s.Header) && strings.Count(value, p) == 1
	case broker.PlaceBasic:
		scheme, rest, _ := strings.Cut(value, " ")
		pair, err := base64.StdEncoding.DecodeString(rest)
		if header != "Authorization" || !strings.EqualFold(scheme, "Basic") || err != nil {
			return false
		}
		user, password, ok := strings.Cut(string(pair), ":")
		x.form = string(pair)
		return ok && (password == p && !strings.Contains(user, p) || user == p && password == "")
	case broker.PlaceQuery:
		return parameter == s.Query && value == p
	}
	return false
}

// takeQuery takes credentials out of the query, whatever a server takes for the end of a parameter.
func (x *exchange) takeQuery() *refusal {
	s := &x.loan.spec
	kept := make([]string, 0, 8)
	for part := range strings.SplitSeq(x.r.URL.RawQuery, "&") {
		taken := false
		for piece := range strings.SplitSeq(part, ";") {
			rawName, rawValue, _ := strings.Cut(piece, "=")
			name, err := url.QueryUnescape(rawName)
			if err != nil {
				return &refusal{reason: egress.ReasonPath, text: "the query is not escaped as it should be"}
			}
			if !x.isCredential(name) {
				continue
			}
			value, err := url.QueryUnescape(rawValue)
			if err != nil {
				return &refusal{reason: egress.ReasonPath, text: "the query is not escaped as it should be"}
			}
			if refused := x.took("", name, value); refused != nil {
				return refused
			}
			taken = true
		}
		if !taken {
			kept = append(kept, part)
		}
	}
	x.query = strings.Join(kept, "&")
	if s.Placeholder == broker.PlaceQuery && x.wants && strings.Contains(x.r.URL.RawQuery, ";") {
		return &refusal{reason: egress.ReasonSecretLocation, secret: s.Name,
			text: "parameters are parted by & where a secret is lent"}
	}
	return nil
}

func (x *exchange) isCredential(name string) bool {
	s, name := &x.loan.spec, strings.ToLower(name)
	return slices.Contains(credentialQuery, name) || s.Query != "" && strings.ToLower(s.Query) == name ||
		slices.ContainsFunc(s.StripQuery, func(q string) bool { return strings.ToLower(q) == name })
}

// gitUser is who a token is of, for git over https, where nothing else is said.
const gitUser = "x-access-token"

// inject adds the credential to the request that is sent.
func (x *exchange) inject(out *http.Request) error {
	s, p, value := &x.loan.spec, x.loan.placeholder, x.cred.value.Reveal()
	replaced := ""
	if s.Placeholder != "" {
		replaced = strings.Replace(x.form, p, value, 1)
	}
	switch s.Place() {
	case broker.PlaceBearer:
		if replaced == "" {
			replaced = "Bearer " + value
		}
		out.Header.Set("Authorization", replaced)
	case broker.PlaceHeader:
		if replaced == "" {
			replaced = s.Prefix + value
		}
		out.Header.Set(s.Header, replaced)
	case broker.PlaceQuery:
		if out.URL.RawQuery != "" {
			out.URL.RawQuery += "&"
		}
		out.URL.RawQuery += url.QueryEscape(s.Query) + "=" + url.QueryEscape(value)
	case broker.PlaceBasic:
		if replaced == "" {
			if replaced = value; s.User != "" {
				replaced = s.User + ":" + value
			}
		}
		return x.basic(out, replaced)
	case broker.PlaceGit:
		user := s.User
		if user == "" {
			user = gitUser
		}
		return x.basic(out, user+":"+value)
	case broker.PlaceSigV4:
		return x.sign(out)
	}
	return nil
}

// basic adds USER:PASSWORD.
func (x *exchange) basic(out *http.Request, pair string) error {
	if !strings.Contains(pair, ":") {
		return unreadable(x.loan.spec.Name, "add user: NAME, or make the value USER:PASSWORD", "it has no user", nil)
	}
	out.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(pair)))
	return nil
}
