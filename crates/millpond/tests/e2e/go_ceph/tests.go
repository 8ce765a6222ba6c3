// Package tests names what is tested, so that go.sum locks it.
package tests

import _ "github.com/ceph/go-ceph/rbd"
