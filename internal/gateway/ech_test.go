package gateway_test

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"testing"
)

// echConfigs is a list of one configuration by which a client hides the name it wants behind public (RFC 9849).
func echConfigs(t *testing.T, public string) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pub := key.PublicKey().Bytes()
	body := []byte{7, 0, 0x20} // its number; DHKEM(X25519)
	body = binary.BigEndian.AppendUint16(body, uint16(len(pub)))
	body = append(body, pub...)
	body = append(body, 0, 4, 0, 1, 0, 1) // HKDF-SHA256 with AES-128-GCM
	body = append(body, 64, byte(len(public)))
	body = append(append(body, public...), 0, 0)
	config := binary.BigEndian.AppendUint16([]byte{0xfe, 0x0d}, uint16(len(body)))
	config = append(config, body...)
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(config))), config...)
}
