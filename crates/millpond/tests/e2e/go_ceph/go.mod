module millpond.example/go_ceph

go 1.23.0

require github.com/ceph/go-ceph v0.34.0

require golang.org/x/sys v0.33.0 // indirect
