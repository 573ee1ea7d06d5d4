//! Third-party programs built on verbs, as Debian ships them: UCX, libfabric and Open MPI; and a program that watches events.
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), and the packages ucx-utils, libfabric-bin, openmpi-bin,
//! libopenmpi-dev and ibverbs-utils.

use ironverbs_tests::stock::{Node, Pair, customers, has_all};

#[test]
fn ucx_lists_what_it_can_do_with_every_device() {
    let node = Node::new("ucx-info", 2);
    let out = node.run(&["ucx_info", "-d"]);
    for transport in ["rc_verbs", "ud_verbs"] {
        for dev in ["iron0:1", "iron1:1", "iron2:1"] {
            let found =
                out.split("Transport: ").any(|part| part.starts_with(transport) && part.contains(dev));
            assert!(found, "{transport} on {dev} is missing in\n{out}");
        }
    }
    assert!(!out.contains("< failed to open interface >"), "{out}");
}

#[test]
fn ucx_sends_tagged_messages() {
    let node = Node::new("ucx-tag", 2);
    for transport in customers::TRANSPORTS {
        for (test, size) in
            [("tag_lat", "8"), ("tag_lat", "100000"), ("tag_bw", "4096"), ("tag_bw", "1048576")]
        {
            let pair = customers::ucx_pair(&node, transport, test, size);
            assert!(pair.client.contains("Final:"), "{transport} {test} {size}: {}", pair.client);
        }
    }
}

#[test]
fn ucx_puts_gets_and_adds() {
    let node = Node::new("ucx-rma", 2);
    for transport in customers::TRANSPORTS {
        for test in ["ucp_put_lat", "ucp_put_bw", "ucp_get", "ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"] {
            let pair = customers::ucx_pair(&node, transport, test, "8");
            assert!(pair.client.contains("Final:"), "{transport} {test}: {}", pair.client);
        }
    }
}

/// It lists the devices with addresses on the host's interfaces, and finds the others when asked for their addresses.
#[test]
fn libfabric_finds_every_device() {
    let node = Node::new("fi-info", 2);
    for (address, dev) in [("127.0.0.1", "iron0"), ("127.0.0.2", "iron1"), ("127.0.0.3", "iron2")] {
        let out = node.run(&["fi_info", "-p", "verbs", "-t", "FI_EP_MSG", "-s", address]);
        assert!(out.contains(&format!("domain: {dev}\n")), "{dev} is missing in\n{out}");
        let out = node.run(&["fi_info", "-p", "verbs", "-d", &format!("{dev}-dgram")]);
        assert!(out.contains("FI_EP_DGRAM") || out.contains("FI_PROTO_RXD"), "{dev}: {out}");
    }
    let out = node.run(&["fi_info", "-p", "verbs"]);
    assert!(out.contains("FI_EP_MSG") && out.contains("FI_EP_DGRAM"), "{out}");
}

/// Runs fi_pingpong with a server on the first VF.
fn fabric(node: &Node, provider: &str, endpoint: &str, sizes: &[&str]) {
    let pair = Pair::listening(
        node,
        |port| customers::fabric(provider, endpoint, &["-B", port]),
        |port| customers::fabric(provider, endpoint, &["-P", port, "127.0.0.2"]),
    );
    customers::fabric_said(&pair.client, sizes);
}

#[test]
fn libfabric_talks_over_connections() {
    fabric(&Node::new("fi-msg", 2), "verbs", "msg", &customers::SIZES);
}

#[test]
fn libfabric_talks_reliably_without_connections() {
    fabric(&Node::new("fi-rdm", 2), "verbs;ofi_rxm", "rdm", &customers::SIZES);
}

#[test]
fn libfabric_sends_datagrams() {
    let node = Node::new("fi-dgram", 2);
    fabric(&node, "verbs", "dgram", &["64", "256", "1k", "4k"]);
    fabric(&node, "verbs;ofi_rxd", "rdm", &["64", "256", "1k", "4k"]);
}

#[test]
fn open_mpi_says_hello_over_ucx() {
    let node = Node::new("mpi-hello", 2);
    for transport in customers::TRANSPORTS {
        let out = customers::ranks(&node, transport, &["iron1:1"], "hello");
        has_all(&out, ["hello from 0 of 2, together 3", "hello from 1 of 2, together 3"]);
    }
}

#[test]
fn open_mpi_sends_and_checks_messages_of_every_size() {
    let node = Node::new("mpi-pingpong", 2);
    for transport in customers::TRANSPORTS {
        let out = customers::ranks(&node, transport, &["iron1:1"], "pingpong");
        let rows = out.lines().filter(|line| line.split_whitespace().count() == 2).count();
        assert!(rows >= 11 && out.contains("1048576"), "{transport}:\n{out}");
    }
}

#[test]
fn asyncwatch_listens_to_a_device() {
    let node = Node::new("asyncwatch", 2);
    // It never ends by itself; its first line says that it has an open device and waits.
    let out = node.run(&["sh", "-c", "timeout 2 stdbuf -o0 ibv_asyncwatch -d iron1; [ $? = 124 ]"]);
    assert!(out.contains("iron1: async event FD"), "{out}");
}
