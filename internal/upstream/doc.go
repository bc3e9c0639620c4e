// Package upstream dials what a name stands for. It resolves the name itself and judges every address as it is dialled. It
// is the only package that dials outwards.
package upstream
