//go:build !amd64

package boot

// copyCode is nothing where no template can be started either.
func copyCode() []byte { return nil }
