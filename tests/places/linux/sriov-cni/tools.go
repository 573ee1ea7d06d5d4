//go:build tools

// Package tools names sriov-cni, the last version that the Go module proxy has, as what this module is for. It is of the time
// before modules: go.mod says what its glide.lock said of its libraries, in the nearest versions that have a name.
package tools

import _ "github.com/intel/sriov-cni/cmd/sriov"
