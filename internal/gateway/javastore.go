package gateway

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"

	pkcs12 "software.sslmate.com/src/go-pkcs12"
)

// A truststore is a PFX (RFC 7292): a version, and contents within contents, of which the innermost are a list. To encode
// all of the machine's authorities takes milliseconds, so that is done once; each sandbox's store has its own one's content
// put behind theirs. It has no password: what protects it is that the sandbox cannot write it.

type pfx struct {
	Version  int
	AuthSafe contents
}

type contents struct {
	Type    asn1.ObjectIdentifier
	Content asn1.RawValue `asn1:"tag:0,explicit"`
}

// encodeStore makes a truststore of certificates.
func encodeStore(certs []*x509.Certificate) ([]byte, error) {
	der, err := pkcs12.Passwordless.EncodeTrustStore(certs, "")
	if err != nil {
		return nil, fmt.Errorf("make a truststore for Java: %w", err)
	}
	return der, nil
}

// joinStores makes one truststore of two that have no password.
func joinStores(a, b []byte) ([]byte, error) {
	first, list, err := openStore(a)
	if err != nil {
		return nil, err
	}
	_, more, err := openStore(b)
	if err != nil {
		return nil, err
	}
	joined := asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: append(list[:len(list):len(list)], more...)}
	octets, err := asn1.Marshal(joined)
	if err != nil {
		return nil, fmt.Errorf("join truststores: %w", err)
	}
	inner, err := asn1.Marshal(octets)
	if err != nil {
		return nil, fmt.Errorf("join truststores: %w", err)
	}
	first.AuthSafe.Content = asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 0, IsCompound: true, Bytes: inner}
	der, err := asn1.Marshal(first)
	if err != nil {
		return nil, fmt.Errorf("join truststores: %w", err)
	}
	return der, nil
}

// openStore returns a store and what its list has.
func openStore(der []byte) (pfx, []byte, error) {
	var p pfx
	if rest, err := asn1.Unmarshal(der, &p); err != nil || len(rest) > 0 {
		return p, nil, fmt.Errorf("read a truststore: %w", errors.Join(err, errMore(rest)))
	}
	var octets []byte
	if rest, err := asn1.Unmarshal(p.AuthSafe.Content.Bytes, &octets); err != nil || len(rest) > 0 {
		return p, nil, fmt.Errorf("read a truststore: %w", errors.Join(err, errMore(rest)))
	}
	var list asn1.RawValue
	if rest, err := asn1.Unmarshal(octets, &list); err != nil || len(rest) > 0 {
		return p, nil, fmt.Errorf("read a truststore: %w", errors.Join(err, errMore(rest)))
	}
	return p, list.Bytes, nil
}

func errMore(rest []byte) error {
	if len(rest) > 0 {
		return errors.New("there is more behind it")
	}
	return nil
}
