module sriov

go 1.24

require github.com/intel/sriov-cni v2.1.0+incompatible

require (
	github.com/containernetworking/cni v0.6.0 // indirect
	github.com/containernetworking/plugins v0.7.5 // indirect
	github.com/coreos/go-iptables v0.4.2 // indirect
	github.com/vishvananda/netlink v1.0.0 // indirect
	github.com/vishvananda/netns v0.0.0-20180720170159-13995c7128cc // indirect
	golang.org/x/sys v0.0.0-20210112080510-489259a85091 // indirect
)
